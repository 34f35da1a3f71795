#include "train/hf/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace muster::train::hf {
namespace {

using testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Safetensors, ReadsAFile) {
  const TempDir folder;
  ASSERT_TRUE(
      write_file_atomic(folder / "x", with_length(R"({"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},
      "__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},
      "none":{"dtype":"F16","shape":[3,0],"data_offsets":[4,4]}}   )",
                                                  "aaaabbbb")));
  const auto file = File::open(folder / "x");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3U);
  const Tensor &a = file->tensors()[0], &none = file->tensors()[1], &b = file->tensors()[2];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.number, Number::bf16);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(b.numel(), 1);
  EXPECT_EQ(file->bytes(b).size(), 4U);
  EXPECT_EQ(static_cast<char>(file->bytes(b)[0]), 'b');
}

TEST(Safetensors, WhatIsWrongIsNamed) {
  struct Case {
    std::string file;
    const char* says;
    ErrorCode code = ErrorCode::corrupt;
  };
  const std::string data(8, 'x');
  const auto one = [&](const std::string& tensor) { return with_length("{\"a\":" + tensor + "}", data); };
  const std::string good = one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})");
  const Case cases[] = {
      {"", "has 0 bytes: no safetensors file"},
      {"1234567", "has 7 bytes"},
      {"PK\x03\x04zip!" + data, "its header is said to have"},
      {good.substr(0, 30), "its header has 54 bytes, the file 30: truncated"},
      {good.substr(0, good.size() - 1), "describes 8 bytes of data, the file has 7: truncated"},
      {good + "!", "describes 8 bytes of data, the file has 9"},
      {with_length("{", data), "header: "},
      {with_length("[]", data), "header: "},
      {with_length(std::string(100'000, '['), data), "header: "},
      {with_length(R"({"a":3})", data), "header: a is no object"},
      {one(R"({"dtype":"F32","shape":[2]})"), "tensor a: dtype, shape and data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"),
       "tensor a: dtype, shape and data_offsets"},
      {one(R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})"),
       "tensor a has dtype I64; F32, F16 and BF16 are read", ErrorCode::unsupported},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "tensor a: shape [-2]"},
      {one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"), "tensor a: shape"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), "data_offsets [-8,0]"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "do not hold shape [2] of F32"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "do not hold shape [3]"},
      // 2^62 x 4 x 2 bytes are 2^65.
      {one(R"({"dtype":"F16","shape":[4611686018427387904,4],"data_offsets":[0,0]})"), "do not hold shape"},
      {with_length(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                       "b":{"dtype":"F16","shape":[3],"data_offsets":[2,8]}})",
                   data),
       "tensor b begins at byte 2 of the data, inside of the one before, which ends at 4"},
      {with_length(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},
                       "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                   data),
       "tensor b begins at byte 4 of the data, the one before ends at 2"},
  };
  const TempDir folder;
  for (const Case& c : cases) {
    ASSERT_TRUE(write_file_atomic(folder / "bad", c.file));
    const auto file = File::open(folder / "bad");
    ASSERT_FALSE(file) << c.says;
    EXPECT_EQ(file.error().code, c.code) << c.says;
    EXPECT_THAT(file.error().message, testing::AllOf(HasSubstr(folder / "bad"), HasSubstr(c.says)));
  }
  EXPECT_EQ(File::open(folder / "none").error().code, ErrorCode::not_found);
}

TEST(Safetensors, WhatIsWrittenReadsBack) {
  const TempDir folder;
  auto writer = FileWriter::create(folder / "x", {{.name = "b", .number = Number::f32, .shape = {2}},
                                                  {.name = "a", .number = Number::f16, .shape = {1, 3}}});
  ASSERT_TRUE(writer) << writer.error().message;
  ASSERT_TRUE(writer->append(bytes_of("bbbb")));
  ASSERT_TRUE(writer->append(bytes_of("bbbbaaaaaa")));
  EXPECT_FALSE(File::open(folder / "x")) << "it has its name before it is whole";
  ASSERT_TRUE(writer->finish());
  const auto file = File::open(folder / "x");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensors()[0].name, "b");
  EXPECT_EQ(file->tensors()[1].shape, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(static_cast<char>(file->bytes(file->tensors()[1]).back()), 'a');
  EXPECT_THAT(std::string(file->header()), HasSubstr(R"("__metadata__":{"format":"pt"})"));
  EXPECT_EQ((file->header().size() + 8) % 64, 0U);
}

TEST(Safetensors, AWriterThatStopsLeavesNothing) {
  const TempDir folder;
  {
    auto writer = FileWriter::create(folder / "x", {{.name = "a", .number = Number::f32, .shape = {2}}});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->append(bytes_of("aaaa")));
  }
  EXPECT_NE(::access((folder / "x").c_str(), F_OK), 0);
  EXPECT_NE(::access((folder / "x.partial").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace muster::train::hf
