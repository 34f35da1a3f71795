// Loss and bits per byte on held-out text. One thread a rank: each calls with its own model and comm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/comm/comm.h"
#include "train/data/loader.h"
#include "train/pipeline/pipeline.h"

namespace muster::train {

struct Evaluation {
  double loss = 0;           // nats a token; 0 without tokens
  double bits_per_byte = 0;  // of the text that the tokens stand for; 0 without bytes
  std::uint64_t windows = 0;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;
};

// "loss=3.4120 bits_per_byte=1.2000 tokens=16384 bytes=65432"; "none" of what there is no mean of.
std::string to_text(const Evaluation& evaluation);

// Which of the windows this rank computes, and whether it is the one of the ranks that compute the same
// windows whose loss is taken: on the last stage.
struct EvaluationPart {
  int part = 0, parts = 1;
  bool counts = true;
};

struct EvaluationOptions {
  std::uint64_t windows_max = 0;  // at most, evenly spread
  std::uint64_t rows = 1;         // windows a pass
  EvaluationPart part;
  bool document_mask = false;                   // as Batch::documents
  GoOn go_on;                                   // asked before every pass; may be empty
  std::function<void(const std::string&)> say;  // one line: every five seconds how far it is; may be empty
};

// Collective over `world`. Every part does as many passes as the others, as a pass may be collective, too.
// The same bits for any number of parts. Nothing: go_on said no.
Result<std::optional<Evaluation>> evaluate(Pipeline& pipeline, const Loader& loader,
                                           const EvaluationOptions& options, Comm& world);

}  // namespace muster::train
