// What the tests of ckpt save, recognise and hurt. One thread at a time.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "train/ckpt/checkpoint.h"
#include "train/ckpt/saver.h"
#include "train/comm/test_ranks.h"

namespace muster::train {

// Whose process may not do everything while this lives, if it is root's: file modes count.
class Unprivileged {
 public:
  Unprivileged() { EXPECT_EQ(root_ ? seteuid(kNobody) : 0, 0); }
  ~Unprivileged() { EXPECT_EQ(root_ ? seteuid(0) : 0, 0); }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

  // Gives it to whom the process is then.
  static void give(const std::string& path) {
    EXPECT_EQ(geteuid() == 0 ? chown(path.c_str(), kNobody, static_cast<gid_t>(-1)) : 0, 0);
  }

 private:
  static constexpr uid_t kNobody = 65534;
  const bool root_ = geteuid() == 0;
};

// Tensors whose content is a function of step and element, so that a reader knows what to expect.
struct Content {
  std::int64_t step;
  std::vector<TensorInfo> tensors;
  std::vector<std::vector<float>> values;

  Content(std::int64_t step_, std::vector<std::int64_t> sizes) : step(step_) {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      tensors.push_back({"layer." + std::to_string(t) + ".weight", "F32", {sizes[t], 1}});
      Rng rng(static_cast<std::uint64_t>(step) * 1000 + t);
      std::vector<float> data(static_cast<std::size_t>(sizes[t]));
      for (auto& value : data) value = static_cast<float>(rng.uniform());
      values.push_back(std::move(data));
    }
  }

  CheckpointInfo info() const {
    return {.step = step,
            .samples = static_cast<std::uint64_t>(step) * 8,
            .tokenizer_hash = "abc",
            .config = {{"model.layers", 2}, {"train.lr", 3e-4}},
            .layout = {{"world", 2}},
            .machines = {},
            .data = {},
            .tensors = tensors};
  }

  Slice part_of_tensor(std::size_t t, std::size_t begin, std::size_t end) const {
    return {tensors[t].name,
            whole_box(tensors[t].shape),
            {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)}};
  }

  // Rank r of n writes its share of each tensor.
  std::vector<TensorSlice> slices(int rank, int size) const {
    std::vector<TensorSlice> out;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::size_t count = values[t].size(), n = static_cast<std::size_t>(size),
                        r = static_cast<std::size_t>(rank);
      const std::size_t begin = count * r / n, end = count * (r + 1) / n;
      out.push_back(
          {part_of_tensor(t, begin, end), std::as_bytes(std::span(values[t]).subspan(begin, end - begin))});
    }
    return out;
  }
};

// Saves folder/step-N with a Saver and waits for it. Collective, with Saver's outcome.
inline Result<void> save_checkpoint(const std::string& folder, const CheckpointInfo& info,
                                    std::span<const TensorSlice> mine, const Writer& writer, Comm& comm) {
  Saver saver({.folder = folder, .writer = writer}, comm);
  MUSTER_CHECK(saver.start(info, mine));
  MUSTER_CHECK(saver.wait());
  return {};
}

// Empty if the reader gives exactly the content.
inline std::string difference(Reader& reader, const Content& content) {
  if (reader.info().step != content.step) return "step " + std::to_string(reader.info().step);
  for (std::size_t t = 0; t < content.tensors.size(); ++t) {
    std::vector<float> data(content.values[t].size());
    if (auto read =
            reader.read(content.part_of_tensor(t, 0, data.size()), std::as_writable_bytes(std::span(data)));
        !read) {
      return read.error().message;
    }
    if (data != content.values[t]) return "other values in " + content.tensors[t].name;
  }
  return "";
}

// Saves with `size` ranks, two to a node; the answers of all ranks.
inline std::vector<Result<void>> save(const std::string& folder, const Content& content, int size) {
  return on_ranks(size, [&](Comm& comm) {
    const int rank = comm.rank();
    return save_checkpoint(folder, content.info(), content.slices(rank, size),
                           {.node = rank / 2, .local_rank = rank % 2}, comm);
  });
}

inline void save_whole(const std::string& folder, const Content& content, int size = 1) {
  for (const auto& answer : save(folder, content, size)) ASSERT_TRUE(answer) << answer.error().message;
}

// One bit of a file.
inline void flip(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  char byte = 0;
  file.get(byte);
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 4));
}

}  // namespace muster::train
