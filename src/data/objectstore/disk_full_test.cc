// A disk that is full, tried on a tmpfs of 8 MiB in a mount namespace of the test's own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/file.h"
#include "data/objectstore/object_store.h"
#include "data/objectstore/testing.h"

namespace muster::objectstore {
namespace {

constexpr int kNoNamespaces = 77;

#define REQUIRE(condition)                                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                            \
    }                                                                      \
  } while (false)

ports::ObjectResult<ports::Written> put(ports::ObjectStore& store, std::string_view key, std::size_t size,
                                        bool announced) {
  TextSource source(std::string(size, 'x'));
  ports::PutOptions options;
  if (announced) options.size = size;
  return store.put("bucket", key, source, options, Time{1});
}

// A store that was closed opens though not a block is left.
int open_without_room(const std::string& mount_point, const Options& options) {
  const auto filler_path = mount_point + "/filler";
  {
    auto opened = open(options);
    REQUIRE(opened);
    REQUIRE((*opened)->create_bucket({"bucket", "us-east-1", Time{1}}));
    REQUIRE(put(**opened, "k", 1 << 20, true));
  }
  {
    auto filler = open_file(filler_path, O_WRONLY | O_CREAT);
    REQUIRE(filler);
    while (write_all(filler->get(), std::string(4096, 'x'))) {
    }
  }
  auto opened = open(options);
  REQUIRE(opened);
  REQUIRE(read_object(**opened, "bucket", "k") == std::string(1 << 20, 'x'));
  REQUIRE(::unlink(filler_path.c_str()) == 0);
  return 0;
}

// In the child; the exit status.
int fill_the_disk(const std::string& mount_point) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNoNamespaces;
  static_cast<void>(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr));
  if (::mount("none", mount_point.c_str(), "tmpfs", 0, "size=8m") != 0) return kNoNamespaces;
  const Options options{.directory = mount_point + "/objects", .readers = 1, .ballast_bytes = 512 << 10};
  REQUIRE(open_without_room(mount_point, options) == 0);
  auto opened = open(options);
  REQUIRE(opened);
  auto& store = **opened;
  for (const bool announced : {true, false}) {
    const auto refused = put(store, "k", 20 << 20, announced);
    REQUIRE(!refused);
    REQUIRE(refused.error().fault == ports::ObjectFault::storage_full);
    REQUIRE(content_files(options.directory) == 1);
    REQUIRE(read_object(store, "bucket", "k") == std::string(1 << 20, 'x'));
  }
  // Small objects, until the metadata does not fit either.
  int stored = 0;
  for (;; ++stored) {
    const auto written = put(store, "small/" + std::to_string(stored), 20'000, true);
    if (written) continue;
    REQUIRE(written.error().fault == ports::ObjectFault::storage_full);
    break;
  }
  REQUIRE(stored > 50);
  REQUIRE(store.list("bucket", {.prefix = "small/"})->objects.size() ==
          static_cast<std::size_t>(std::min(stored, 1000)));
  REQUIRE(read_object(store, "bucket", "small/0").size() == 20'000);
  // Removing makes room again.
  REQUIRE(store.remove("bucket", "k", {}));
  for (int i = 0; i < stored / 2; ++i) REQUIRE(store.remove("bucket", "small/" + std::to_string(i), {}));
  REQUIRE(wait_for_content_files(options.directory, static_cast<std::size_t>(stored - stored / 2)));
  REQUIRE(put(store, "after", 500'000, true));
  REQUIRE(read_object(store, "bucket", "after").size() == 500'000);
  return 0;
}

TEST(DiskFull, IsSaidAndLeavesTheOldObjects) {
  const TempDir folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(fill_the_disk(folder.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespaces) GTEST_SKIP() << "no mount namespaces here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace muster::objectstore
