// Every block against its twin: the same mathematics in a few eager lines, differentiated by libtorch's
// autograd, in fp64. The explicit backward must agree to 1e-12 of the largest gradient.
#include "train/model/detail/blocks.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "train/model/detail/model_detail.h"
#include "train/model/model.h"

namespace muster::train {
namespace {

using detail::Shape;
using detail::Weight;

constexpr double kTolerance = 1e-12;

double relative(const at::Tensor& a, const at::Tensor& b) {
  const double scale = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / (scale == 0 ? 1.0 : scale);
}

at::Tensor rms(const at::Tensor& x, const at::Tensor& w, double eps) {
  return x * (x.pow(2).mean(-1, true) + eps).rsqrt() * w;
}

// [B, S, H, D], rotate-half, from first principles.
at::Tensor turn(const at::Tensor& x, double theta) {
  const std::int64_t dim = x.size(3);
  const at::Tensor frequency =
      at::pow(theta, at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim)).reciprocal();
  const at::Tensor angle = at::arange(x.size(1), at::kDouble).unsqueeze(1) * frequency;
  const at::Tensor full = at::cat({angle, angle}, 1).unsqueeze(1);
  const auto halves = x.chunk(2, 3);
  return x * full.cos() + at::cat({-halves[1], halves[0]}, 3) * full.sin();
}

at::Tensor attention_twin(const ModelConfig& c, const at::Tensor& x, Shape shape, const at::Tensor& norm,
                          const at::Tensor& qkv, const at::Tensor& output) {
  const at::Tensor all =
      rms(x, norm, c.norm_eps).mm(qkv.t()).view({shape.rows, shape.sequence, -1, c.head_dim});
  const at::Tensor q = turn(all.narrow(2, 0, c.heads), c.rope_theta).transpose(1, 2);
  const std::int64_t group = c.heads / c.kv_heads;
  const at::Tensor k =
      turn(all.narrow(2, c.heads, c.kv_heads), c.rope_theta).repeat_interleave(group, 2).transpose(1, 2);
  const at::Tensor v =
      all.narrow(2, c.heads + c.kv_heads, c.kv_heads).repeat_interleave(group, 2).transpose(1, 2);
  at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(c.head_dim));
  const at::Tensor future = at::ones({shape.sequence, shape.sequence}, at::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor mixed = scores.softmax(-1).matmul(v).transpose(1, 2).reshape({shape.tokens(), -1});
  return x + mixed.mm(output.t());
}

at::Tensor mlp_twin(const ModelConfig& c, const at::Tensor& x, const at::Tensor& norm,
                    const at::Tensor& gate_up, const at::Tensor& down) {
  const auto parts = rms(x, norm, c.norm_eps).mm(gate_up.t()).chunk(2, 1);
  return x + (at::silu(parts[0]) * parts[1]).mm(down.t());
}

at::Tensor loss_twin(const ModelConfig& c, const at::Tensor& x, const at::Tensor& targets,
                     const at::Tensor& norm, const at::Tensor& output) {
  const at::Tensor logits = rms(x, norm, c.norm_eps).mm(output.t());
  return at::nll_loss(logits.log_softmax(1), targets, {}, at::Reduction::Sum, kIgnoredTarget);
}

at::Tensor leaf(const at::Tensor& value) { return value.detach().clone().requires_grad_(true); }

struct Variant {
  const char* name;
  ModelConfig config;
  Shape shape;
};

ModelConfig variant_config(std::int64_t heads, std::int64_t kv_heads, std::int64_t dim, std::int64_t width,
                           std::int64_t ffn) {
  return {.vocab = 71,
          .layers = 1,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = dim,
          .ffn = ffn,
          .max_sequence = 128,
          .init_std = 0.3};
}

class Blocks : public testing::TestWithParam<Variant> {
 protected:
  Blocks() : model_(Model::create(GetParam().config, {.dtype = Dtype::f64}).value()) {
    at::set_num_threads(1);  // small shapes: threads would only wait for each other
    at::manual_seed(11);
    model_.init_parameters(3);
    // Norm weights away from 1, or an error in them would hide.
    for (Weight* w : {&layer().attention.norm, &layer().mlp.norm, &detail().head.norm}) {
      w->value.add_(at::randn_like(w->value), 0.2);
    }
  }
  Model::Detail& detail() { return model_.detail(); }
  Model::Detail::Layer& layer() { return detail().layers[0]; }
  Model::Detail::LayerSaved& saved() { return detail().slot(0).saved[0]; }
  const ModelConfig& config() { return model_.table().config(); }
  Shape shape() { return GetParam().shape; }
  at::Tensor stream() { return at::randn({shape().tokens(), config().width}, at::kDouble); }

  struct Passes {
    at::Tensor x, dy, y, dx;
  };
  // Forward and backward of random numbers through a block that is between two others.
  template <typename Block>
  Passes passes(const Block& block, typename Block::Saved& block_saved) {
    const at::NoGradGuard no_grad;
    Passes p{.x = stream(), .dy = stream(), .y = {}, .dx = {}};
    p.y = at::empty_like(p.x);
    p.dx = p.dy.clone();
    block.forward(p.x, &p.y, shape(), block_saved, detail().context);
    block.backward(p.dx, shape(), block_saved, true, detail().context);
    return p;
  }

  Model model_;
};

TEST_P(Blocks, AttentionMatchesAutograd) {
  auto& block = layer().attention;
  const auto [x, dy, y, dx] = passes(block, saved().attention);
  const at::Tensor tx = leaf(x), norm = leaf(block.norm.value), qkv = leaf(block.qkv.value),
                   output = leaf(block.output.value);
  const at::Tensor ty = attention_twin(config(), tx, shape(), norm, qkv, output);
  ty.backward(dy);
  EXPECT_LE(relative(y, ty.detach()), kTolerance);
  EXPECT_LE(relative(dx, tx.grad()), kTolerance);
  EXPECT_LE(relative(block.norm.gradient, norm.grad()), kTolerance);
  EXPECT_LE(relative(block.qkv.gradient, qkv.grad()), kTolerance);
  EXPECT_LE(relative(block.output.gradient, output.grad()), kTolerance);
}

TEST_P(Blocks, MlpMatchesAutograd) {
  auto& block = layer().mlp;
  const auto [x, dy, y, dx] = passes(block, saved().mlp);
  const at::Tensor tx = leaf(x), norm = leaf(block.norm.value), gate_up = leaf(block.gate_up.value),
                   down = leaf(block.down.value);
  const at::Tensor ty = mlp_twin(config(), tx, norm, gate_up, down);
  ty.backward(dy);
  EXPECT_LE(relative(y, ty.detach()), kTolerance);
  EXPECT_LE(relative(dx, tx.grad()), kTolerance);
  EXPECT_LE(relative(block.norm.gradient, norm.grad()), kTolerance);
  EXPECT_LE(relative(block.gate_up.gradient, gate_up.grad()), kTolerance);
  EXPECT_LE(relative(block.down.gradient, down.grad()), kTolerance);
}

TEST_P(Blocks, HeadMatchesAutograd) {
  auto& block = detail().head;
  const at::Tensor x = stream();
  at::Tensor targets = at::randint(0, config().vocab, {shape().tokens()}, at::kLong);
  targets[0] = kIgnoredTarget;
  at::Tensor dx = at::empty_like(x);
  double loss = 0;
  {
    const at::NoGradGuard no_grad;
    loss = block.loss(x, shape(), targets.const_data_ptr<std::int64_t>(), detail().head_saved, &dx, true,
                      detail().context);
  }
  const at::Tensor tx = leaf(x), norm = leaf(block.norm.value), output = leaf(block.output.value);
  const at::Tensor ty = loss_twin(config(), tx, targets, norm, output);
  ty.backward();
  EXPECT_NEAR(loss, ty.item<double>(), kTolerance * loss);
  EXPECT_LE(relative(dx, tx.grad()), kTolerance);
  EXPECT_LE(relative(block.norm.gradient, norm.grad()), kTolerance);
  EXPECT_LE(relative(block.output.gradient, output.grad()), kTolerance);
}

TEST_P(Blocks, EmbeddingMatchesAutograd) {
  auto& block = detail().embedding;
  const at::Tensor tokens = at::randint(0, config().vocab, {shape().tokens()}, at::kLong);
  const at::Tensor dy = stream();
  at::Tensor y = at::empty_like(dy);
  {
    const at::NoGradGuard no_grad;
    block.forward(tokens.const_data_ptr<std::int64_t>(), shape(), y, detail().context);
    block.table.gradient.fill_(77);  // fresh must overwrite rows without tokens too
    block.backward(tokens.const_data_ptr<std::int64_t>(), shape(), dy, true, detail().context);
  }
  const at::Tensor table = leaf(block.table.value);
  const at::Tensor ty = table.index_select(0, tokens);
  ty.backward(dy);
  EXPECT_TRUE(at::equal(y, ty.detach()));
  EXPECT_LE(relative(block.table.gradient, table.grad()), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Blocks,
                         testing::Values(Variant{"plain", variant_config(4, 4, 16, 64, 80), {2, 24}},
                                         Variant{"grouped", variant_config(6, 2, 8, 48, 56), {3, 17}},
                                         Variant{"one_kv_head", variant_config(4, 1, 10, 24, 33), {1, 40}},
                                         Variant{"one_token", variant_config(2, 2, 6, 12, 20), {5, 1}},
                                         Variant{"wide_heads", variant_config(3, 3, 32, 40, 48), {1, 100}}),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace muster::train
