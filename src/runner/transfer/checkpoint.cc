#include "runner/transfer/checkpoint.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace muster::runner {
namespace {

constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kLock = ".muster-lock";  // docs/formats/checkpoint-v1.md
constexpr std::uint64_t kManifestBytesMax = 1ULL << 30;
constexpr std::size_t kLeftOutMax = 100;  // names in the log

std::string folder_of(const std::string& name) {
  const auto slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash + 1);
}

// Within a folder lower kinds go first, and all of a kind before the next.
enum Kind : std::size_t { plain, node_manifest, manifest, kinds };

Kind kind_of(const std::string& name) {
  const auto own = std::string_view(name).substr(folder_of(name).size());
  if (own == kManifest) return manifest;
  return own.starts_with("node-") && own.ends_with(".json") ? node_manifest : plain;
}

// Whether a node manifest tells of no other files than the manifest. Files of others are taken as they are.
bool fits(std::string_view node, std::string_view whole) {
  const auto node_object = json::parse_object(node), outer = json::parse_object(whole);
  const auto* inner = outer ? json::opt_object(*outer, "manifest") : nullptr;
  const auto* named = inner != nullptr ? json::opt_array(*inner, "files") : nullptr;
  const auto* files = node_object ? json::opt_array(*node_object, "files") : nullptr;
  if (named == nullptr || files == nullptr) return true;
  return std::ranges::all_of(
      *files, [&](const auto& file) { return std::ranges::find(*named, file) != named->end(); });
}

}  // namespace

bool stays_behind(std::string_view name) {
  for (const auto part : split(name, '/')) {
    if (part.find(".tmp-") != std::string_view::npos || part.find(".muster-tmp-") != std::string_view::npos)
      return true;
    if (part.ends_with(".tmp") || part == kLock) return true;
  }
  return false;
}

CheckpointSync::CheckpointSync(Objects& objects, CheckpointOptions options)
    : objects_(objects), options_(std::move(options)) {}

Result<Transferred> CheckpointSync::restore(std::stop_token stop) {
  // With a slash: checkpoints of "run-1" are not those of "run-10".
  auto restored = download_tree(objects_, below(options_.store, ""), options_.folder, stop);
  if (!restored) return tl::unexpected(restored.error().with_context("cannot restore checkpoints"));
  MUSTER_TRY(const auto tree, Tree::open(options_.folder));
  MUSTER_TRY(const auto entries, tree.list());
  for (const auto& entry : entries) {
    if (entry.kind == TreeEntry::Kind::file) copied_[entry.name] = {entry.bytes, entry.modified_ns};
  }
  return restored;
}

Result<Transferred> CheckpointSync::scan(std::stop_token stop) { return pass(false, stop); }

Result<Transferred> CheckpointSync::finish(std::stop_token stop) {
  auto done = pass(true, stop);
  if (!done) {
    return tl::unexpected(
        done.error().with_context("cannot upload the last checkpoints to " + to_string(options_.store)));
  }
  return done;
}

Result<Transferred> CheckpointSync::pass(bool last, std::stop_token stop) {
  auto opened = Tree::open(options_.folder);
  if (!opened && opened.error().code == ErrorCode::not_found) return Transferred{};
  if (!opened) return tl::unexpected(opened.error());
  MUSTER_TRY(const auto entries, opened->list());
  std::map<std::string, Seen> now;
  std::array<std::vector<TreeEntry>, kinds> ready;
  std::set<std::string> unsettled;  // names of files that are still written
  for (const auto& entry : entries) {
    if (stays_behind(entry.name)) continue;
    if (entry.kind != TreeEntry::Kind::file) {
      if (entry.kind != TreeEntry::Kind::folder) say_left_out(entry);
      continue;
    }
    const Seen seen{entry.bytes, entry.modified_ns};
    now[entry.name] = seen;
    const auto copied = copied_.find(entry.name);
    if (copied != copied_.end() && copied->second == seen) continue;
    const auto before = before_.find(entry.name);
    if (!last && (before == before_.end() || before->second != seen)) {
      unsettled.insert(entry.name);
    } else {
      ready[kind_of(entry.name)].push_back(entry);
    }
  }
  before_ = std::move(now);
  Transferred total;
  std::mutex mutex;
  const auto copy = [&](const TreeEntry& entry, std::stop_token inner) -> Result<void> {
    MUSTER_CHECK(send(*opened, entry.name, inner));
    const std::lock_guard lock(mutex);
    copied_[entry.name] = {entry.bytes, entry.modified_ns};
    ++total.files;
    total.bytes += entry.bytes;
    return {};
  };
  const auto waits = [&](const TreeEntry& entry) {
    const auto folder = folder_of(entry.name);
    const auto first = unsettled.lower_bound(folder);
    return first != unsettled.end() && first->starts_with(folder);
  };
  for (const Kind kind : {plain, node_manifest}) {
    auto& files = ready[kind];
    if (kind != plain) std::erase_if(files, waits);
    MUSTER_CHECK(for_each(files.size(), options_.threads, stop,
                          [&](std::size_t i, std::stop_token inner) { return copy(files[i], inner); }));
  }
  for (const auto& entry : ready[manifest]) {
    if (waits(entry)) continue;
    MUSTER_TRY(const bool complete, peers_done(*opened, entry.name, last, stop));
    if (complete) MUSTER_CHECK(copy(entry, stop));
  }
  return total;
}

// Whether the folder of the manifest is complete in the store on all nodes. A folder without node-<k>.json is
// no concern of other nodes.
Result<bool> CheckpointSync::peers_done(const Tree& tree, const std::string& name, bool last,
                                        std::stop_token stop) {
  if (options_.world == 1) return true;
  const auto folder = folder_of(name);
  const auto ours = before_.lower_bound(folder + "node-");
  if (ours == before_.end() || !ours->first.starts_with(folder + "node-")) return true;
  MUSTER_TRY(const auto file, tree.open_file(name));
  MUSTER_TRY(const std::string text, read_file(descriptor_path(file), kManifestBytesMax));
  const auto begin = boot_time();
  for (;;) {
    MUSTER_TRY(const int missing, missing_peer(text, below(options_.store, folder + "node-"), stop));
    if (missing < 0) return true;
    if (!last) return false;
    if (boot_time() - begin > options_.peers_max) {
      options_.log("muster: checkpoint " + folder + " stays without its manifest: node-" +
                   std::to_string(missing) + ".json did not come from its node");
      return false;
    }
    if (!sleep_unless(stop, Millis{200})) return fail(ErrorCode::cancelled, "stopped");
  }
}

// The first node whose node-<k>.json is not there, or is that of an earlier save; -1: none.
Result<int> CheckpointSync::missing_peer(const std::string& text, const S3Location& prefix,
                                         std::stop_token stop) {
  MUSTER_TRY(const auto there, objects_.list(prefix));
  std::vector<Download> nodes;
  for (int node = 0; node < options_.world; ++node) {
    const auto found =
        std::ranges::find(there, prefix.key + std::to_string(node) + ".json", &ObjectInfo::key);
    if (found == there.end()) return node;
    nodes.push_back({*found, std::to_string(node)});
  }
  const TempDir scratch;
  MUSTER_CHECK(objects_.download(prefix.bucket, nodes, scratch.path(), stop));
  for (int node = 0; node < options_.world; ++node) {
    MUSTER_TRY(const std::string own, read_file(scratch / std::to_string(node), kManifestBytesMax));
    if (!fits(own, text)) return node;
  }
  return -1;
}

void CheckpointSync::say_left_out(const TreeEntry& entry) {
  if (left_out_.size() >= kLeftOutMax || !left_out_.insert(entry.name).second) return;
  options_.log("muster: " + options_.folder + "/" + to_utf8_lossy(entry.name) + " is left out: it is a " +
               (entry.kind == TreeEntry::Kind::link ? "link" : "socket, pipe or device") +
               ", and only files are copied" +
               (left_out_.size() == kLeftOutMax ? "; what else is left out is not named" : ""));
}

Result<void> CheckpointSync::send(const Tree& tree, const std::string& name, std::stop_token stop) {
  MUSTER_TRY(const auto file, tree.open_file(name));
  const auto object = below(options_.store, name);
  const auto path = descriptor_path(file);
  auto sent = objects_.upload(path, object, stop);
  if (!sent) return tl::unexpected(sent.error().with_context(to_string(object)));
  return {};
}

}  // namespace muster::runner
