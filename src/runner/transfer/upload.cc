#include "runner/transfer/upload.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "domain/job.h"
#include "runner/transfer/archive.h"
#include "runner/transfer/tree.h"

namespace muster::runner {
namespace {

S3Location part_of(const S3Location& archive, int rank) {
  return {archive.bucket, archive.key + ".parts/" + domain::host_name(rank) + "/files.tar"};
}

// A file that goes with its name when the work is done.
class Scratch {
 public:
  Scratch(const std::string& folder, const std::string& name) : path_(folder + "/" + name) {}
  ~Scratch() { ::unlink(path_.c_str()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class OutputUpload {
 public:
  OutputUpload(Objects& objects, const domain::Output& output, const UploadContext& context,
               std::stop_token stop)
      : objects_(objects),
        output_(output),
        context_(context),
        stop_(std::move(stop)),
        folder_(node_path(context.opt_ml, output.local_path)) {}

  Result<Transferred> run() {
    MUSTER_TRY(to_, parse_s3_uri(output_.s3_uri));
    if (output_.form == domain::Output::Form::raw) return raw();
    const bool part = output_.merged && context_.rank > 0;
    return part ? this->part() : archive();
  }

 private:
  // nullopt: the command removed the folder.
  Result<std::optional<Tree>> tree() {
    auto opened = Tree::open(folder_);
    if (opened) return std::optional<Tree>(*std::move(opened));
    if (opened.error().code != ErrorCode::not_found) return tl::unexpected(opened.error());
    log("the folder " + output_.local_path + " is gone; it counts as empty");
    return std::optional<Tree>();
  }

  Result<Transferred> part() {
    MUSTER_TRY(const auto root, tree());
    const Scratch scratch(context_.scratch, output_.name + ".part");
    MUSTER_TRY(auto writer, ArchiveWriter::create(scratch.path(), false));
    if (root) MUSTER_CHECK(writer.add_tree(*root, stop_, said()));
    MUSTER_CHECK(writer.finish());
    MUSTER_CHECK(send(scratch.path(), part_of(to_, context_.rank)));
    return Transferred{writer.files(), writer.bytes()};
  }

  // Higher ranks first: what is already there when a lower one comes is the winner.
  Result<Transferred> archive() {
    MUSTER_TRY(const auto root, tree());
    const Scratch scratch(context_.scratch, output_.name + ".archive");
    MUSTER_TRY(auto writer, ArchiveWriter::create(scratch.path(), true));
    const int parts = output_.merged ? context_.world : 1;
    for (int rank = parts - 1; rank > 0; --rank) MUSTER_CHECK(take_in(writer, rank));
    if (root) MUSTER_CHECK(writer.add_tree(*root, stop_, said()));
    MUSTER_CHECK(writer.finish());
    MUSTER_CHECK(send(scratch.path(), to_));
    for (int rank = parts - 1; rank > 0; --rank) MUSTER_CHECK(objects_.remove(part_of(to_, rank)));
    return Transferred{writer.files(), writer.bytes()};
  }

  Result<void> take_in(ArchiveWriter& writer, int rank) {
    const auto object = part_of(to_, rank);
    const auto name = output_.name + ".from-" + domain::host_name(rank);
    const Scratch scratch(context_.scratch, name);
    MUSTER_TRY(const auto there, objects_.list(object));
    if (there.empty()) {
      log("nothing came from " + domain::host_name(rank));
      return {};
    }
    MUSTER_CHECK(objects_.download(object.bucket, {{there.front(), name}}, context_.scratch, stop_));
    return writer.add_archive(scratch.path(), stop_, said());
  }

  Result<Transferred> raw() {
    MUSTER_TRY(const auto root, tree());
    if (!root) return Transferred{};
    MUSTER_TRY(const auto entries, root->list());
    std::vector<TreeEntry> files;
    for (const auto& entry : entries) {
      if (entry.kind == TreeEntry::Kind::folder) continue;
      if (entry.kind == TreeEntry::Kind::other) {
        log(entry.name + " is left out: it is a socket, pipe or device");
      } else if (!is_utf8(entry.name)) {
        return fail(ErrorCode::invalid_argument, "the file name " + to_utf8_lossy(entry.name) +
                                                     " is not UTF-8, so it cannot be a key; rename it");
      } else {
        files.push_back(entry);
      }
    }
    MUSTER_CHECK(warn_of_conflicts(files));
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> sent{0};
    const auto done =
        for_each(files.size(), context_.threads, stop_, [&](std::size_t i, std::stop_token) -> Result<void> {
          const auto file = root->open_file(files[i].name);
          if (!file && files[i].kind == TreeEntry::Kind::link) {
            log(files[i].name + " is left out: it is a link to no file of this folder");
            return {};
          }
          if (!file) return tl::unexpected(file.error());
          struct stat info {};
          if (::fstat(file->get(), &info) == 0) bytes += static_cast<std::uint64_t>(info.st_size);
          ++sent;
          return send(descriptor_path(*file), below(to_, files[i].name));
        });
    if (!done) return tl::unexpected(done.error());
    return Transferred{sent, bytes};
  }

  // Two nodes that write one key: the last writer wins, and the log says so.
  Result<void> warn_of_conflicts(const std::vector<TreeEntry>& files) {
    if (context_.world == 1 || files.empty()) return {};
    MUSTER_TRY(const auto there, objects_.list(below(to_, "")));
    std::set<std::string> young;
    for (const auto& object : there) {
      if (object.modified >= context_.attempt_created) young.insert(object.key);
    }
    for (const auto& file : files) {
      const auto object = below(to_, file.name);
      if (young.count(object.key) != 0) {
        log(to_string(object) + " was written by another node too; this node's file wins");
      }
    }
    return {};
  }

  Result<void> send(const std::string& path, const S3Location& object) {
    auto sent = objects_.upload(path, object, stop_);
    if (!sent) return tl::unexpected(sent.error().with_context(to_string(object)));
    return {};
  }

  ArchiveWriter::Skipped said() {
    return [this](const std::string& name, const std::string& why) {
      log(name + " is left out: it " +
          (why == "is already there" ? "came from a node of higher rank too, and the last one wins" : why));
    };
  }
  void log(const std::string& text) { context_.log("muster: output \"" + output_.name + "\": " + text); }

  Objects& objects_;
  const domain::Output& output_;
  const UploadContext& context_;
  std::stop_token stop_;
  std::string folder_;
  S3Location to_;
};

}  // namespace

Result<Transferred> upload_output(Objects& objects, const domain::Output& output,
                                  const UploadContext& context, std::stop_token stop) {
  auto done = OutputUpload(objects, output, context, std::move(stop)).run();
  if (!done) {
    return tl::unexpected(
        done.error().with_context("cannot upload \"" + output.name + "\" to " + output.s3_uri));
  }
  return done;
}

}  // namespace muster::runner
