#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/file.h"
#include "text/shards.h"
#include "train/data/loader.h"
#include "train/data/test_stream.h"

namespace muster::train {
namespace {

TEST(Permutation, IsABijectionForEverySize) {
  for (std::uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 255, 256, 257, 1000, 65'537}) {
    for (std::uint64_t epoch : {0, 1}) {
      const Permutation permutation(size, 42, epoch);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t value = permutation(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << size;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, DiffersBySeedAndEpochAndIsNotTheIdentity) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    const Permutation permutation(1000, seed, epoch);
    std::vector<std::uint64_t> values;
    for (std::uint64_t i = 0; i < 1000; ++i) values.push_back(permutation(i));
    return values;
  };
  const auto matches = [](const auto& a, const auto& b) {
    int count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
    return count;
  };
  std::vector<std::uint64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  // Two random permutations agree in one place on average.
  EXPECT_LT(matches(order(1, 0), order(2, 0)), 10);
  EXPECT_LT(matches(order(1, 0), order(1, 1)), 10);
  EXPECT_LT(matches(order(1, 0), identity), 10);
  EXPECT_EQ(order(1, 0), order(1, 0));
}

// The first places of many seeds are spread evenly: chi-square with 15 degrees of freedom, 99.99 % bound.
TEST(Permutation, FirstPlacesAreEven) {
  std::vector<int> counts(16);
  for (std::uint64_t seed = 0; seed < 1600; ++seed) ++counts[Permutation(160, seed, 0)(0) / 10];
  double chi = 0;
  for (int count : counts) chi += (count - 100.0) * (count - 100.0) / 100.0;
  EXPECT_LT(chi, 44.3);
}

TEST(Loader, WindowsAreInputsAndTheTokensThatFollow) {
  std::vector<std::int64_t> tokens(26);
  std::iota(tokens.begin(), tokens.end(), 100);
  const MemoryStream stream(tokens, 1000);
  const auto loader = Loader::create(stream, 5, 1);
  ASSERT_TRUE(loader);
  EXPECT_EQ(loader->windows(), 5u);
  Samples out;
  ASSERT_TRUE(loader->windows_in_order(3, 2, out));
  EXPECT_EQ(out.tokens, (std::vector<std::int64_t>{115, 116, 117, 118, 119, 120, 121, 122, 123, 124}));
  EXPECT_EQ(out.targets, (std::vector<std::int64_t>{116, 117, 118, 119, 120, 121, 122, 123, 124, 125}));
}

TEST(Loader, AnEpochTakesEveryWindowOnceAndTheNextInAnotherOrder) {
  std::vector<std::int64_t> tokens(401);
  std::iota(tokens.begin(), tokens.end(), 0);
  const MemoryStream stream(tokens, 1000);
  const auto loader = Loader::create(stream, 4, 9);
  ASSERT_TRUE(loader);
  Samples epochs[2];
  for (std::uint64_t epoch : {0, 1}) {
    ASSERT_TRUE(loader->samples(epoch * 100, 100, epochs[epoch]));
    const std::set<std::int64_t> seen(epochs[epoch].tokens.begin(), epochs[epoch].tokens.end());
    EXPECT_EQ(seen.size(), 400u);
  }
  EXPECT_NE(epochs[0].tokens, epochs[1].tokens);
}

TEST(Loader, RefusesTooLittleData) {
  const MemoryStream stream({1, 2, 3, 4}, 10);
  EXPECT_TRUE(Loader::create(stream, 3, 0));
  const auto loader = Loader::create(stream, 4, 0);
  ASSERT_FALSE(loader);
  EXPECT_THAT(loader.error().message, testing::HasSubstr("the data has 4 tokens, one window of 4 needs 5"));
}

TEST(Mixture, EveryRunHasItsSharesToTheSample) {
  const auto mixture = Mixture::create({1, 2, 0.5}, 7);
  ASSERT_TRUE(mixture);
  EXPECT_EQ(mixture->share(0) + mixture->share(1) + mixture->share(2), Mixture::kBlock);
  EXPECT_NEAR(static_cast<double>(mixture->share(1)), static_cast<double>(Mixture::kBlock) * 2 / 3.5, 1);
  for (const std::uint64_t run : {0u, 3u}) {
    std::vector<std::set<std::uint64_t>> seen(3);
    for (std::uint64_t i = 0; i < Mixture::kBlock; ++i) {
      const auto draw = mixture->draw(run * Mixture::kBlock + i);
      ASSERT_TRUE(seen[draw.source].insert(draw.index).second);
    }
    for (std::size_t source = 0; source < 3; ++source) {  // the next indices of each, without a gap
      ASSERT_EQ(seen[source].size(), mixture->share(source));
      EXPECT_EQ(*seen[source].begin(), run * mixture->share(source));
      EXPECT_EQ(*seen[source].rbegin(), (run + 1) * mixture->share(source) - 1);
    }
  }
}

// A batch of 256 samples has about its share too: 5 standard deviations of a free draw.
TEST(Mixture, BatchesAreMixed) {
  const auto mixture = Mixture::create({1, 3}, 5);
  for (std::uint64_t batch = 0; batch < 200; ++batch) {
    int first = 0;
    for (std::uint64_t i = 0; i < 256; ++i) first += mixture->draw(batch * 256 + i).source == 0 ? 1 : 0;
    EXPECT_NEAR(first, 64, 5 * 6.93) << batch;
  }
}

TEST(Mixture, RefusesWeightsThatGiveNothing) {
  EXPECT_EQ(
      Mixture::create({1, 0}, 1).error().message,
      "weight 2 of the mixture is 0: a number from 1e-15 to 1e+15 is needed; only the ratios of weights "
      "count");
  for (const double beyond : {-1.0, 1e308, 1e-300, double(INFINITY), std::nan("")})
    EXPECT_THAT(Mixture::create({beyond, beyond}, 1).error().message, testing::HasSubstr("weight 1 of "))
        << beyond;
  EXPECT_FALSE(Mixture::create({}, 1));
  EXPECT_THAT(
      Mixture::create({1, 1e-9}, 1).error().message,
      testing::HasSubstr("weight 2 of the mixture, 1e-09 of 1 in all, is less than one sample in 65536"));
  for (const double limit : {Mixture::kWeightLeast, Mixture::kWeightMost}) {
    const auto mixture = Mixture::create(std::vector<double>(1000, limit), 1);
    ASSERT_TRUE(mixture) << mixture.error().message;
    EXPECT_NEAR(static_cast<double>(mixture->share(0)), 65.5, 1);
  }
}

TEST(Loader, AMixtureDrawsWholeWindowsByWeight) {
  std::vector<std::int64_t> tokens(101 + 41);
  std::iota(tokens.begin(), tokens.end(), 0);
  MemoryStream stream(tokens, 1000);
  stream.set_parts({{0, 101, 1, "a"}, {101, 41, 3, "b"}});  // 25 and 10 windows of 4
  const auto loader = Loader::create(stream, 4, 9);
  ASSERT_TRUE(loader) << loader.error().message;
  EXPECT_EQ(loader->windows(), 35u);
  Samples in_order;
  ASSERT_TRUE(loader->windows_in_order(24, 2, in_order));
  EXPECT_EQ(in_order.tokens, (std::vector<std::int64_t>{96, 97, 98, 99, 101, 102, 103, 104}));
  Samples out;
  ASSERT_TRUE(loader->samples(0, Mixture::kBlock, out));
  std::vector<int> counts(tokens.size());
  for (std::uint64_t row = 0; row < out.rows; ++row) {
    const auto first = out.tokens[row * 4];
    EXPECT_EQ((first < 101 ? first : first - 101) % 4, 0);
    EXPECT_EQ(out.targets[row * 4 + 3], first + 4);
    ++counts[static_cast<std::size_t>(first)];
  }
  for (std::size_t at = 0; at < 100; at += 4) EXPECT_NEAR(counts[at], Mixture::kBlock / 4 / 25, 1) << at;
  for (std::size_t at = 101; at < 141; at += 4)
    EXPECT_NEAR(counts[at], Mixture::kBlock * 3 / 4 / 10, 1) << at;
  // What comes when depends on the number of the sample only, not on how many are asked for at a time.
  Samples one;
  ASSERT_TRUE(loader->samples(1234, 1, one));
  EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(), out.tokens.begin() + 1234 * 4));
  stream.set_parts({{0, 101, 1, "a"}, {101, 4, 3, "corpus/b"}});
  EXPECT_THAT(Loader::create(stream, 4, 9).error().message, testing::HasSubstr("corpus/b has 4 tokens"));
}

// A token that the data cannot have would never be ignored.
TEST(Loader, RefusesToIgnoreWhatIsNoToken) {
  const MemoryStream stream(std::vector<std::int64_t>(21), 1000);
  EXPECT_TRUE(Loader::create(stream, 5, 1, 999));
  EXPECT_TRUE(Loader::create(stream, 5, 1, -1));
  EXPECT_EQ(
      Loader::create(stream, 5, 1, 1000).error().message,
      "data.ignored_token = 1000 is no token of the data, whose vocabulary has 1000 (ids 0 to 999); give "
      "the id of its padding, or -1 for none");
}

TEST(Loader, SaysWhereDocumentsBegin) {
  std::vector<std::int64_t> tokens(21);
  std::iota(tokens.begin(), tokens.end(), 0);
  MemoryStream stream(tokens, 1000);
  stream.set_documents({0, 3, 5, 14, 15});
  const auto loader = Loader::create(stream, 5, 1);
  Samples out;
  ASSERT_TRUE(loader->windows_in_order(0, 4, out));
  const std::vector<std::vector<std::int64_t>> expected = {{0, 3}, {0}, {4}, {0}};
  EXPECT_EQ(out.document_begins, expected);
}

// Folders of shards: a mixture reads as both behind each other, and says its parts.
TEST(MixtureStream, IsItsFoldersBehindEachOther) {
  TempDir folder;
  const auto write = [&](const std::string& name, const std::vector<std::vector<text::TokenId>>& documents,
                         char hash) {
    ASSERT_TRUE(make_directories(folder / name));
    auto writer = text::ShardWriter::create(
        folder / name + "/s.mts", {std::string(64, hash), 2, 0, std::vector<std::uint16_t>(100, 3)});
    ASSERT_TRUE(writer);
    for (const auto& document : documents) {
      writer->begin_document();
      ASSERT_TRUE(writer->append(document));
    }
    ASSERT_TRUE(writer->finish());
  };
  write("a", {{1, 2, 3}, {4, 5}}, 'a');
  write("b", {{6, 7}, {8}}, 'a');
  write("c", {{9}}, 'c');
  const auto stream = mixture_stream({{folder / "a", 1}, {folder / "b", 3}});
  ASSERT_TRUE(stream) << stream.error().message;
  std::vector<std::int64_t> read(5);
  ASSERT_TRUE((*stream)->read(2, read));
  EXPECT_EQ(read, (std::vector<std::int64_t>{3, 4, 5, 6, 7}));
  EXPECT_FALSE((*stream)->read(4, read));
  EXPECT_EQ((*stream)->bytes_in(3, 4), 12u);
  std::vector<std::uint64_t> documents;
  (*stream)->document_begins(1, 7, documents);
  EXPECT_EQ(documents, (std::vector<std::uint64_t>{3, 5, 7}));
  EXPECT_EQ((*stream)->parts()[1].begin, 5u);
  EXPECT_EQ((*stream)->description().at("mixture").as_array().size(), 2u);
  const auto by_tokens = open_tokens(folder / "a" + ", " + folder / "b", "");
  ASSERT_TRUE(by_tokens) << by_tokens.error().message;
  EXPECT_EQ((*by_tokens)->parts()[0].weight, 5);
  EXPECT_EQ((*by_tokens)->parts()[1].weight, 3);
  EXPECT_EQ(mixture_stream({{folder / "a", 1}, {folder / "c", 1}}).error().code,
            ErrorCode::failed_precondition);
  EXPECT_EQ(mixture_stream({{folder / "a", 1}, {folder / "gone", 1}}).error().code, ErrorCode::not_found);
}

// The same documents in another order have the same counts.
TEST(Data, OneWithAnotherDigestIsAnother) {
  const auto described = [](const std::vector<std::vector<text::TokenId>>& documents, bool mixed) {
    TempDir folder;
    auto writer = text::ShardWriter::create(folder / "s.mts",
                                            {std::string(64, 'a'), 2, 0, std::vector<std::uint16_t>(100, 3)});
    for (const auto& document : documents) {
      writer->begin_document();
      EXPECT_TRUE(writer->append(document));
    }
    EXPECT_TRUE(writer->finish());
    return (*open_tokens(mixed ? folder.path() + "," + folder.path() : folder.path(), ""))->description();
  };
  for (const bool mixed : {false, true}) {
    const json::Object now = described({{1, 2, 3}, {4, 5}}, mixed);
    EXPECT_EQ(compare_data(now, now), SameData::yes);
    EXPECT_EQ(compare_data(described({{4, 5}, {1, 2, 3}}, mixed), now), SameData::no);
    json::Object old = now;  // of a checkpoint before there were digests
    old.erase("digest");
    if (mixed) {
      for (auto& part : old["mixture"].as_array()) part.as_object().erase("digest");
    }
    EXPECT_EQ(compare_data(old, now), SameData::as_counted);
    EXPECT_EQ(compare_data(old, described({{1, 2, 3}, {4}}, mixed)), SameData::no);
  }
}

TEST(OpenTokens, RefusesWeightsThatDoNotFitTheFolders) {
  const auto message = [](const char* folders, const char* weights) {
    const auto stream = open_tokens(folders, weights);
    return stream ? std::string("opened") : stream.error().message;
  };
  EXPECT_THAT(message("a, b", "1"), testing::HasSubstr("data.mixture has 1 weights, data.train 2 folders"));
  EXPECT_THAT(message("a,b", "1, 0"),
              testing::HasSubstr("data.mixture = 1, 0: weight 2 is \"0\"; a number from 1e-15 to 1e+15 is "
                                 "needed; only the ratios of weights count"));
  for (const std::string weight : {"1e308", "inf", "nan", "1e-300", "-1", "x", ""})
    EXPECT_THAT(message("a,b", (weight + ",1").c_str()),
                testing::HasSubstr("weight 1 is \"" + weight + "\"; a number"));
  EXPECT_THAT(message("/no/a,/no/b", ""), testing::HasSubstr("tokens of /no/a"));
  EXPECT_THAT(message("a,,b", ""), testing::HasSubstr("data.train = a,,b: name 2 of 3 is empty"));
  EXPECT_THAT(message("a,", "1,2"), testing::HasSubstr("name 2 of 2 is empty"));
  EXPECT_THAT(message(" ", ""), testing::HasSubstr("data.train is not set: give --set data.train=FOLDER"));
}

// Ranks with one micro-batch each see what one rank sees in as many micro-batches.
TEST(SplitBatch, PartsTileTheBatchInOrder) {
  const auto whole = split_batch(12, 2, 1, 0);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->count, 6u);
  std::uint64_t next = 0;
  for (int part = 0; part < 3; ++part) {
    const auto share = split_batch(12, 2, 3, part);
    ASSERT_TRUE(share);
    EXPECT_EQ(share->first, next);
    EXPECT_EQ(share->count, 2u);
    next += share->micro * share->count;
  }
  EXPECT_EQ(next, 12u);
}

TEST(SplitBatch, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(
      split_batch(10, 2, 3, 0).error().message,
      "train.batch = 10: each of the 3 ranks that share it takes whole micro-batches of "
      "train.micro_batch = 2 windows, so it must be a multiple of 6; 6 and 12 are the nearest, or change "
      "train.micro_batch");
  EXPECT_THAT(split_batch(10, 1, 13, 0).error().message,
              testing::HasSubstr("so it must be a multiple of 13; 13 is the least"));
  EXPECT_TRUE(split_batch(1 << 18, 2, 2, 1));
  EXPECT_THAT(
      split_batch(1 << 19, 2, 2, 1).error().message,
      testing::HasSubstr("is 131072 micro-batches of train.micro_batch = 2 on each rank; at most 65536"));
  EXPECT_THAT(split_batch(7, 2, 1, 0).error().message,
              testing::HasSubstr("1 rank takes whole micro-batches of train.micro_batch = 2"));
}

}  // namespace
}  // namespace muster::train
