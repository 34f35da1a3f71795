// Kills a writing process with SIGKILL at random moments: every acknowledged object is there and whole, no
// other object is torn, and nothing is left that no object uses.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "data/objectstore/object_store.h"
#include "data/objectstore/testing.h"

namespace muster::objectstore {
namespace {

constexpr int kWriters = 3;
constexpr int kKeys = 6;  // of each writer

// The bytes of generation `number` of a key: told apart by every byte, of a length that goes with it.
std::string body_of(int writer, std::int64_t number) {
  const auto size = static_cast<std::size_t>(Rng::mix(static_cast<std::uint64_t>(number)) % 200'000);
  return std::to_string(writer) + " " + std::to_string(number) + " " +
         std::string(size, static_cast<char>('a' + number % 26));
}

std::string key_of(int writer, std::int64_t number) {
  return std::to_string(writer) + "/" + std::to_string(number % kKeys);
}

bool upload_in_parts(ports::ObjectStore& store, const std::string& key, const std::string& body) {
  const auto upload = store.create_upload("bucket", key, {}, Time{1});
  if (!upload) return false;
  std::vector<ports::CompletedPart> parts;
  const auto half = body.size() / 2;
  for (const auto& piece : {body.substr(0, half), body.substr(half)}) {
    TextSource source(piece);
    const auto number = static_cast<std::uint32_t>(parts.size() + 1);
    const auto part = store.put_part("bucket", key, upload->id, number, source, {}, Time{1});
    if (!part) return false;
    parts.push_back({number, part->etag, {}});
  }
  return store.complete_upload("bucket", key, upload->id, parts, {}, Time{1}).has_value();
}

// Runs until it is killed; says "<writer> <number>" on `pipe` after each acknowledged write.
[[noreturn]] void write_for_ever(const Options& options, int pipe, std::int64_t first) {
  auto opened = open(options);
  if (!opened) ::_exit(3);
  auto& store = **opened;
  static_cast<void>(store.create_bucket({"bucket", "us-east-1", Time{1}}));
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&store, pipe, writer, first] {
      for (std::int64_t number = first;; ++number) {
        const auto key = key_of(writer, number);
        const auto body = body_of(writer, number);
        bool done = false;
        if (number % 4 == 3) {
          done = upload_in_parts(store, key, body);
        } else {
          TextSource source(body);
          done = store.put("bucket", key, source, {.size = body.size()}, Time{1}).has_value();
        }
        if (!done) ::_exit(4);
        const auto line = std::to_string(writer) + " " + std::to_string(number) + "\n";
        if (::write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(5);
      }
    });
  }
  for (auto& writer : writers) writer.join();
  ::_exit(6);
}

// What the killed process had acknowledged: the newest number of every key.
std::map<std::string, std::int64_t> acknowledged(int pipe, std::int64_t& largest) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(pipe, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  std::map<std::string, std::int64_t> newest;
  for (const auto line : split(text, '\n')) {
    const auto space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const auto writer = static_cast<int>(parse_int(line.substr(0, space)).value());
    const auto number = parse_int(line.substr(space + 1)).value();
    newest[key_of(writer, number)] = number;
    largest = std::max(largest, number);
  }
  return newest;
}

TEST(Crash, EveryAcknowledgedObjectIsWhole) {
  const TempDir folder;
  const Options options{.directory = folder / "objects", .part_bytes_min = 1};
  Rng rng(20261129);
  std::map<std::string, std::int64_t> newest;
  std::int64_t largest = -1;
  for (int round = 0; round < 12; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe[0]);
      write_for_ever(options, pipe[1], largest + 1);
    }
    ::close(pipe[1]);
    std::this_thread::sleep_for(Millis{rng.between(20, 250)});
    ::kill(child, SIGKILL);
    for (const auto& [key, number] : acknowledged(pipe[0], largest)) newest[key] = number;
    ::close(pipe[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself with " << WEXITSTATUS(status);

    auto store = open(options);
    ASSERT_TRUE(store) << store.error().message;
    if (newest.empty()) continue;  // killed while it opened
    for (const auto& [key, number] : newest) {
      const auto body = read_object(**store, "bucket", key);
      const auto words = split(std::string_view(body).substr(0, 40), ' ');
      ASSERT_GE(words.size(), 3U) << key << ": " << body.substr(0, 100);
      const auto there = parse_int(words[1]);
      ASSERT_TRUE(there) << key << ": " << body.substr(0, 100);
      EXPECT_GE(*there, number) << "an acknowledged write of " << key << " is lost";
      EXPECT_EQ(body, body_of(static_cast<int>(*parse_int(words[0])), *there)) << key << " is torn";
      largest = std::max(largest, *there);
    }
    const auto page = (*store)->list("bucket", {});
    ASSERT_TRUE(page);
    std::size_t files = 0;
    for (const auto& object : page->objects) {
      EXPECT_EQ(read_object(**store, "bucket", object.key).size(), object.size);
      files += (*(*store)->get("bucket", object.key))->piece_count();
    }
    const auto uploads = (*store)->list_uploads("bucket", {});
    for (const auto& upload : uploads->uploads) {
      ASSERT_TRUE((*store)->abort_upload("bucket", upload.key, upload.id));
    }
    EXPECT_TRUE(wait_for_content_files(options.directory, files)) << "content without an object is left";
  }
  EXPECT_GT(largest, 5) << "the rounds were too short to write anything";
}

}  // namespace
}  // namespace muster::objectstore
