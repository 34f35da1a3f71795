#include "runner/transfer/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace muster::runner {
namespace {

constexpr std::size_t kBlock = 256 << 10;

struct FreeWriter {
  void operator()(archive* a) const { archive_write_free(a); }
};
struct FreeReader {
  void operator()(archive* a) const { archive_read_free(a); }
};
struct FreeEntry {
  void operator()(archive_entry* e) const { archive_entry_free(e); }
};
using Writer = std::unique_ptr<archive, FreeWriter>;
using Reader = std::unique_ptr<archive, FreeReader>;
using Entry = std::unique_ptr<archive_entry, FreeEntry>;

tl::unexpected<Error> fail_archive(archive* a, std::string_view what) {
  const int number = archive_errno(a);
  const char* text = archive_error_string(a);
  const auto code = number == ENOSPC || number == EDQUOT ? ErrorCode::no_space
                    : number > 0                         ? ErrorCode::io
                                                         : ErrorCode::corrupt;
  return fail(code, std::string(what) + ": " + (text == nullptr ? "unknown error" : text));
}

mode_t file_type(TreeEntry::Kind kind) {
  switch (kind) {
    case TreeEntry::Kind::folder:
      return AE_IFDIR;
    case TreeEntry::Kind::link:
      return AE_IFLNK;
    case TreeEntry::Kind::file:
    case TreeEntry::Kind::other:
      break;
  }
  return AE_IFREG;
}

Entry entry_of(const TreeEntry& from) {
  Entry entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), from.name.c_str());
  archive_entry_set_filetype(entry.get(), file_type(from.kind));
  archive_entry_set_perm(entry.get(), from.mode);
  archive_entry_set_mtime(entry.get(), from.modified_ns / 1'000'000'000, 0);
  archive_entry_set_size(entry.get(),
                         from.kind == TreeEntry::Kind::file ? static_cast<la_int64_t>(from.bytes) : 0);
  if (from.kind == TreeEntry::Kind::link) archive_entry_set_symlink(entry.get(), from.target.c_str());
  return entry;
}

tl::unexpected<Error> stopped() { return fail(ErrorCode::cancelled, "stopped"); }

}  // namespace

struct ArchiveWriter::Impl {
  Writer writer;
  std::vector<char> block = std::vector<char>(kBlock);
};

ArchiveWriter::ArchiveWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArchiveWriter::ArchiveWriter(ArchiveWriter&&) noexcept = default;
ArchiveWriter& ArchiveWriter::operator=(ArchiveWriter&&) noexcept = default;
ArchiveWriter::~ArchiveWriter() = default;

Result<ArchiveWriter> ArchiveWriter::create(const std::string& path, bool gzip) {
  auto impl = std::make_unique<Impl>();
  impl->writer.reset(archive_write_new());
  auto* a = impl->writer.get();
  if (a == nullptr) return fail(ErrorCode::internal, "libarchive has no memory");
  archive_write_set_format_gnutar(a);
  if (gzip) {
    archive_write_add_filter_gzip(a);
    // Weights hardly compress: the fastest level loses little and takes a third of the time.
    if (archive_write_set_filter_option(a, "gzip", "compression-level", "1") != ARCHIVE_OK ||
        archive_write_set_filter_option(a, "gzip", "timestamp", nullptr) != ARCHIVE_OK) {
      return fail_archive(a, "gzip");
    }
  }
  if (archive_write_open_filename(a, path.c_str()) != ARCHIVE_OK)
    return fail_archive(a, "cannot write " + path);
  return ArchiveWriter(std::move(impl));
}

Result<void> ArchiveWriter::add_tree(const Tree& tree, std::stop_token stop, const Skipped& skipped) {
  MUSTER_TRY(const auto entries, tree.list());
  for (const auto& entry : entries) {
    if (stop.stop_requested()) return stopped();
    if (entry.kind == TreeEntry::Kind::other) {
      skipped(entry.name, "is a socket, pipe or device");
      continue;
    }
    if (entry.kind == TreeEntry::Kind::folder) {
      if (!folders_.insert(entry.name).second) continue;
    } else if (!names_.insert(entry.name).second) {
      skipped(entry.name, "is already there");
      continue;
    }
    MUSTER_CHECK(add_file(tree, entry, stop));
  }
  return {};
}

Result<void> ArchiveWriter::add_file(const Tree& tree, const TreeEntry& entry, std::stop_token stop) {
  auto* a = impl_->writer.get();
  auto header = entry;
  UniqueFd file;
  if (entry.kind == TreeEntry::Kind::file) {
    MUSTER_TRY(file, tree.open_file(entry.name));
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return fail_errno("stat " + entry.name);
    header.bytes = static_cast<std::uint64_t>(info.st_size);
  }
  const auto made = entry_of(header);
  if (archive_write_header(a, made.get()) < ARCHIVE_WARN) return fail_archive(a, "archive " + entry.name);
  if (!file) return {};
  ++files_;
  auto left = header.bytes;
  while (left > 0) {
    if (stop.stop_requested()) return stopped();
    const auto count = ::read(file.get(), impl_->block.data(), std::min<std::uint64_t>(left, kBlock));
    if (count < 0) return fail_errno("read " + entry.name);
    if (count == 0) {
      return fail(ErrorCode::io, entry.name +
                                     " became shorter while it was read; end what writes to it "
                                     "before the command ends");
    }
    const auto wanted = static_cast<std::size_t>(count);
    if (archive_write_data(a, impl_->block.data(), wanted) != count)
      return fail_archive(a, "archive " + entry.name);
    left -= wanted;
    bytes_ += wanted;
  }
  return {};
}

Result<void> ArchiveWriter::add_archive(const std::string& path, std::stop_token stop,
                                        const Skipped& skipped) {
  Reader reader(archive_read_new());
  archive_read_support_format_tar(reader.get());
  archive_read_support_format_empty(reader.get());
  if (archive_read_open_filename(reader.get(), path.c_str(), kBlock) != ARCHIVE_OK) {
    return fail_archive(reader.get(), "cannot read " + path);
  }
  auto* a = impl_->writer.get();
  archive_entry* entry = nullptr;
  for (;;) {
    if (stop.stop_requested()) return stopped();
    const int got = archive_read_next_header(reader.get(), &entry);
    if (got == ARCHIVE_EOF) return {};
    if (got < ARCHIVE_WARN) return fail_archive(reader.get(), "cannot read " + path);
    std::string name = archive_entry_pathname(entry);
    const bool folder = archive_entry_filetype(entry) == AE_IFDIR;
    while (!name.empty() && name.back() == '/') name.pop_back();
    if (folder ? !folders_.insert(name).second : !names_.insert(name).second) {
      if (!folder) skipped(name, "is already there");
      continue;
    }
    if (archive_write_header(a, entry) < ARCHIVE_WARN) return fail_archive(a, "archive " + name);
    if (archive_entry_filetype(entry) == AE_IFREG) ++files_;
    for (;;) {
      const auto count = archive_read_data(reader.get(), impl_->block.data(), kBlock);
      if (count < 0) return fail_archive(reader.get(), "cannot read " + path);
      if (count == 0) break;
      if (archive_write_data(a, impl_->block.data(), static_cast<std::size_t>(count)) != count) {
        return fail_archive(a, "archive " + name);
      }
      bytes_ += static_cast<std::uint64_t>(count);
    }
  }
}

Result<void> ArchiveWriter::finish() {
  if (archive_write_close(impl_->writer.get()) != ARCHIVE_OK) {
    return fail_archive(impl_->writer.get(), "cannot complete the archive");
  }
  return {};
}

}  // namespace muster::runner
