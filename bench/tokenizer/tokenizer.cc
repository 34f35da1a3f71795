// One pass of our tokenizer over documents, for compare.py, which runs it in alternation with its peers.
//
//   bench_tokenizer TOKENIZER DOCUMENTS THREADS
//
// DOCUMENTS: texts with a zero byte behind each. Prints the seconds that coding took, from a cold Encoder a
// thread (what is read from disk is not in it), and the number of tokens.
#include "text/tokenizer.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file.h"

namespace {

using namespace muster;

std::vector<std::string_view> split_documents(std::string_view bytes) {
  std::vector<std::string_view> out;
  while (!bytes.empty()) {
    const auto end = bytes.find('\0');
    out.push_back(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  }
  return out;
}

std::size_t count_tokens(const text::Tokenizer& tokenizer, const std::vector<std::string_view>& documents,
                         std::size_t first, std::size_t last) {
  text::Encoder encoder(tokenizer);
  std::vector<text::TokenId> ids;
  std::size_t count = 0;
  for (auto i = first; i < last; ++i) {
    ids.clear();
    encoder.append(documents[i], true, ids);
    count += ids.size();
  }
  return count;
}

int run(const char* tokenizer_path, const char* documents_path, std::size_t threads) {
  const auto tokenizer = text::Tokenizer::load(tokenizer_path);
  const auto bytes = read_file(documents_path, 8ULL << 30);
  if (!tokenizer || !bytes) {
    std::fprintf(stderr, "%s\n", (tokenizer ? bytes.error() : tokenizer.error()).message.c_str());
    return 1;
  }
  const auto documents = split_documents(*bytes);
  std::vector<std::size_t> counts(threads);
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        counts[i] = count_tokens(*tokenizer, documents, documents.size() * i / threads,
                                 documents.size() * (i + 1) / threads);
      });
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::size_t tokens = 0;
  for (const auto count : counts) tokens += count;
  std::printf("%.6f %zu\n", seconds.count(), tokens);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 4 ? std::atoi(argv[3]) : 0;
  if (threads < 1) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER DOCUMENTS THREADS\n");
    return 2;
  }
  return run(argv[1], argv[2], static_cast<std::size_t>(threads));
}
