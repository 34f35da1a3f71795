#include "train/loop/pretrained.h"

#include <algorithm>

#include "train/comm/agree.h"
#include "train/hf/weights.h"
#include "train/loop/model_tokenizer.h"
#include "train/loop/state.h"

namespace muster::train {

Result<void> load_pretrained(const std::string& folder, const std::string& tokenizer_hash,
                             const ParamTable& table, FlatBuffer& weights, Comm& comm) {
  const auto open = [&]() -> Result<hf::Weights> {
    MUSTER_TRY(hf::Weights found, hf::Weights::open(folder));
    MUSTER_CHECK(found.check(table.config()));
    MUSTER_TRY(const ModelTokenizer tokenizer, ModelTokenizer::find(folder));
    MUSTER_CHECK(tokenizer.check(tokenizer_hash, "the data"));
    return found;
  };
  const auto source = open();
  const auto all =
      agree(comm, source ? Result<std::string>(source->fingerprint()) : tl::unexpected(source.error()));
  if (!all) return tl::unexpected(all.error().with_context("model.from"));
  const auto other =
      std::ranges::find_if(*all, [&](const std::string& print) { return print != all->front(); });
  if (other != all->end()) {
    return fail(ErrorCode::failed_precondition, "the ranks find different weights in model.from = " + folder +
                                                    ": rank 0 " + all->front() + ", rank " +
                                                    std::to_string(other - all->begin()) + " " + *other);
  }
  const auto read = agree(comm, read_weights(*source, table, weights));
  if (!read) return tl::unexpected(read.error().with_context("model.from = " + folder));
  return {};
}

}  // namespace muster::train
