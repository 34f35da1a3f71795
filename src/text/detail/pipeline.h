// The corpus as coded chunks, in order: files are read ahead and chunks coded by threads of its own, a few at
// a time.
//
// The answers depend on the inputs, the tokenizer and the options, not on the number of threads. Files are
// read side by side, so that decompression does not wait for its turn, and the chunks of one file are coded
// side by side. Used by one thread; its threads end with it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "text/detail/coding.h"

namespace muster::text::detail {

class Pipeline {
 public:
  // Everything given must outlive it. threads >= 1.
  Pipeline(const std::vector<InputFile>& inputs, const Tokenizer& tokenizer, CorpusOptions corpus,
           CodingOptions coding, int threads);
  ~Pipeline();

  struct Output {
    std::size_t file = 0;  // index into the inputs
    Coded coded;
  };
  // The next chunk, when it is coded; nullopt at the end. An error of a file comes when those before are
  // through.
  Result<std::optional<Output>> next();

 private:
  // One chunk on its way.
  struct Item {
    Chunk chunk;
    bool json_lines = false;
    Coded coded;
    bool done = false;
  };
  // A file that is read or has been, and not been given out to its end.
  struct Lane {
    std::deque<std::unique_ptr<Item>> items;
    bool ended = false;
    std::optional<Error> error;
  };

  void read(const std::stop_token& stop);
  void read_file(Lane& lane, std::size_t file, const std::stop_token& stop);
  void code_chunks(const std::stop_token& stop);
  std::size_t room(const Lane& lane) const;

  const std::vector<InputFile>& inputs_;
  const Tokenizer& tokenizer_;
  const CorpusOptions corpus_;
  const CodingOptions coding_;
  const std::size_t threads_count_;

  std::mutex mutex_;  // of all below but the threads
  std::condition_variable_any wake_readers_;
  std::condition_variable_any wake_workers_;
  std::condition_variable wake_caller_;
  std::deque<Lane> lanes_;  // of the files [front_, next_file_); a deque, so that they stay where they are
  std::size_t front_ = 0;
  std::size_t next_file_ = 0;
  std::deque<Item*> waiting_;
  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace muster::text::detail
