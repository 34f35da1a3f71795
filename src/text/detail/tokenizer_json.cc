#include "text/detail/tokenizer_json.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "text/detail/coder.h"

namespace muster::text::detail {
namespace {

constexpr std::int64_t kVocabMax = 1 << 24;
constexpr char kNormalizers[] = "none, or Replace of \" \" by U+2581, with or without Prepend of U+2581";
constexpr char kDecoders[] =
    "ByteLevel with a ByteLevel pre_tokenizer; else the Sequence Replace of U+2581 by \" \", ByteFallback, "
    "Fuse, and "
    "Strip of one \" \" at the start where the normalizer prepends one";

tl::unexpected<Error> broken(const std::string& what) { return fail(ErrorCode::corrupt, what); }

tl::unexpected<Error> refused(const std::string& what, const std::string& supported) {
  return fail(ErrorCode::unsupported, what + " is not supported; supported: " + supported);
}

std::string type_of(const json::Value& value) {
  if (!value.is_object()) return "without type";
  return json::opt_string(value.get_object(), "type").value_or("without type");
}

const json::Value& member(const json::Object& object, std::string_view name) {
  static const json::Value null;
  const auto* found = object.if_contains(name);
  return found ? *found : null;
}

// A stage, or the stages of a Sequence, or none for null. `list`: the name of its member.
std::vector<json::Value> stages_of(const json::Value& value, std::string_view list) {
  if (value.is_null()) return {};
  if (type_of(value) != "Sequence") return {value};
  std::vector<json::Value> out;
  if (const auto* stages = json::opt_array(value.get_object(), list)) {
    for (const auto& stage : *stages) {
      for (auto& inner : stages_of(stage, list)) out.push_back(std::move(inner));
    }
  }
  return out;
}

bool replaces(const json::Object& object, std::string_view from, std::string_view to) {
  const auto* pattern = json::opt_object(object, "pattern");
  return pattern != nullptr && json::opt_string(*pattern, "String") == from &&
         json::opt_string(object, "content") == to;
}

Result<void> read_model_options(const json::Object& model, TokenizerJson& out) {
  const auto type = json::opt_string(model, "type").value_or("BPE");
  if (type != "BPE") return refused("model " + type, "BPE");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json::opt_string(model, name).value_or("").empty())
      return refused(std::string("BPE with ") + name, "BPE without");
  }
  if (json::opt_double(model, "dropout").value_or(0) > 0) {
    return refused("BPE with dropout", "BPE without: its tokens must not be random");
  }
  out.fuse_unk = json::opt_bool(model, "fuse_unk").value_or(false);
  out.byte_fallback = json::opt_bool(model, "byte_fallback").value_or(false);
  out.ignore_merges = json::opt_bool(model, "ignore_merges").value_or(false);
  return {};
}

Result<void> put_token(const std::string& text, std::int64_t id, TokenizerJson& out) {
  if (id < 0 || id >= kVocabMax) {
    return broken("token \"" + text + "\" has the id " + std::to_string(id) + ", possible are 0 .. " +
                  std::to_string(kVocabMax - 1));
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= out.tokens.size()) out.tokens.resize(at + 1);
  if (!out.tokens[at].empty()) {
    return broken("the tokens \"" + out.tokens[at] + "\" and \"" + text + "\" have the same id " +
                  std::to_string(id));
  }
  out.tokens[at] = text;
  out.ids.emplace(text, static_cast<TokenId>(id));
  return {};
}

Result<void> read_vocab(const json::Object& model, TokenizerJson& out) {
  const auto* vocab = json::opt_object(model, "vocab");
  if (vocab == nullptr || vocab->empty()) return broken("model.vocab is missing or empty");
  out.ids.reserve(vocab->size());
  for (const auto& [text, id] : *vocab) {
    if (!id.is_int64()) return broken("the id of token \"" + std::string(text) + "\" is not a number");
    if (text.empty()) continue;  // can never be coded
    MUSTER_CHECK(put_token(std::string(text), id.get_int64(), out));
  }
  if (const auto unk = json::opt_string(model, "unk_token")) {
    const auto it = out.ids.find(*unk);
    if (it == out.ids.end()) return broken("unk_token \"" + *unk + "\" is not in model.vocab");
    out.unk = it->second;
  }
  return {};
}

// The two parts of a merge: ["a", "b"] or "a b".
Result<std::pair<std::string, std::string>> parts_of(const json::Value& merge) {
  if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
      merge.get_array()[1].is_string()) {
    return std::pair{std::string(merge.get_array()[0].get_string()),
                     std::string(merge.get_array()[1].get_string())};
  }
  if (merge.is_string()) {
    const auto words = split(json::view(merge.get_string()), ' ');
    if (words.size() == 2) return std::pair{std::string(words[0]), std::string(words[1])};
  }
  return broken("not two tokens");
}

Result<void> read_merges(const json::Object& model, TokenizerJson& out) {
  const auto* merges = json::opt_array(model, "merges");
  if (merges == nullptr) return broken("model.merges is missing");
  out.merges.reserve(merges->size());
  for (const auto& merge : *merges) {
    const auto place = "merge " + std::to_string(out.merges.size()) + " (" + json::dump(merge) + ")";
    const auto parts = parts_of(merge);
    if (!parts) return tl::unexpected(parts.error().with_context(place));
    const auto id = [&](const std::string& text) {
      const auto it = out.ids.find(text);
      return it == out.ids.end() ? TokenId{-1} : it->second;
    };
    const TokenizerJson::Merge ids{id(parts->first), id(parts->second), id(parts->first + parts->second)};
    if (ids.left < 0 || ids.right < 0 || ids.result < 0) {
      return broken(place + ": its parts and what it makes must be in model.vocab");
    }
    out.merges.push_back(ids);
  }
  return {};
}

Result<void> read_added(const json::Object& root, TokenizerJson& out) {
  const auto* list = json::opt_array(root, "added_tokens");
  if (list == nullptr) return {};
  for (const auto& value : *list) {
    if (!value.is_object()) return broken("added_tokens has something that is no object");
    const auto& object = value.get_object();
    AddedToken token;
    MUSTER_TRY(token.content, json::get_string(object, "content"));
    MUSTER_TRY(const auto id, json::get_int(object, "id"));
    if (token.content.empty()) return broken("an added token is empty");
    token.special = json::opt_bool(object, "special").value_or(false);
    token.normalized = json::opt_bool(object, "normalized").value_or(!token.special);
    token.lstrip = json::opt_bool(object, "lstrip").value_or(false);
    token.rstrip = json::opt_bool(object, "rstrip").value_or(false);
    if (json::opt_bool(object, "single_word").value_or(false)) {
      return refused("added token \"" + token.content + "\" with single_word", "added tokens without");
    }
    if (const auto it = out.ids.find(token.content); it == out.ids.end()) {
      MUSTER_CHECK(put_token(token.content, id, out));
    } else if (it->second != id) {
      return broken("added token \"" + token.content + "\" has the id " + std::to_string(id) +
                    ", in model.vocab it has " + std::to_string(it->second));
    }
    token.id = static_cast<TokenId>(id);
    out.added.push_back(std::move(token));
  }
  return {};
}

// Sets out.prefix; answers whether spaces become marks.
Result<bool> read_normalizer(const json::Value& value, TokenizerJson& out) {
  bool marks = false;
  for (const auto& stage : stages_of(value, "normalizers")) {
    const auto type = type_of(stage);
    if (type == "Prepend" && json::opt_string(stage.get_object(), "prepend") == kSpaceMark) {
      out.prefix = true;
    } else if (type == "Replace" && replaces(stage.get_object(), " ", kSpaceMark)) {
      marks = true;
    } else {
      return refused("normalizer " + (type == "Prepend" || type == "Replace" ? json::dump(stage) : type),
                     kNormalizers);
    }
  }
  if (out.prefix && !marks) return refused("normalizer Prepend without Replace", kNormalizers);
  return marks;
}

Result<void> check_decoder(const json::Value& value, const TokenizerJson& tokenizer) {
  std::vector<std::string> types;
  for (const auto& stage : stages_of(value, "decoders")) {
    types.push_back(type_of(stage));
    if (!stage.is_object()) continue;
    const auto& object = stage.get_object();
    const bool odd_replace = types.back() == "Replace" && !replaces(object, kSpaceMark, " ");
    const bool odd_strip = types.back() == "Strip" && (json::opt_string(object, "content") != " " ||
                                                       json::opt_int(object, "start") != 1 ||
                                                       json::opt_int(object, "stop").value_or(0) != 0);
    if (odd_replace || odd_strip) return refused("decoder " + json::dump(stage), kDecoders);
  }
  std::vector<std::string> wanted = {"ByteLevel"};
  if (!tokenizer.pre_tokenizer.byte_level) {
    wanted = {"Replace"};
    if (tokenizer.byte_fallback) wanted.emplace_back("ByteFallback");
    wanted.emplace_back("Fuse");
    if (tokenizer.prefix) wanted.emplace_back("Strip");
  }
  if (types == wanted) return {};
  return refused("decoder " + (types.empty() ? "null" : join(types, ", ")) + " here (" + join(wanted, ", ") +
                     " is expected)",
                 kDecoders);
}

// These only put special tokens around a text, which encode() does not do.
Result<void> check_post_processor(const json::Value& value) {
  for (const auto& stage : stages_of(value, "processors")) {
    const auto type = type_of(stage);
    if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
        type != "BertProcessing") {
      return refused("post_processor " + type,
                     "ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing");
    }
  }
  return {};
}

TokenId first_id(const json::Object& object, std::string_view name) {
  const auto& value = member(object, name);
  if (value.is_int64()) return static_cast<TokenId>(value.get_int64());
  if (value.is_array() && !value.get_array().empty() && value.get_array()[0].is_int64()) {
    return static_cast<TokenId>(value.get_array()[0].get_int64());
  }
  return -1;
}

// The id of a token given as "text" or {"content": "text"}; -1: not given.
Result<TokenId> id_of_named(const json::Object& config, const std::string& name,
                            const TokenizerJson& tokenizer) {
  auto text = json::opt_string(config, name);
  if (const auto* object = json::opt_object(config, name)) text = json::opt_string(*object, "content");
  if (!text) return -1;
  const auto it = tokenizer.ids.find(*text);
  if (it == tokenizer.ids.end())
    return broken(name + " \"" + *text + "\" is not in the vocabulary of tokenizer.json");
  return it->second;
}

}  // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view text) {
  const auto root = json::parse_object(text);
  if (!root) return broken("tokenizer.json: " + root.error().message);
  const auto* model = json::opt_object(*root, "model");
  if (model == nullptr) return broken("no tokenizer.json: it has no member model");
  TokenizerJson out;
  MUSTER_CHECK(read_model_options(*model, out));
  MUSTER_TRY(const bool marks, read_normalizer(member(*root, "normalizer"), out));
  MUSTER_TRY(out.pre_tokenizer, parse_pre_tokenizer(member(*root, "pre_tokenizer")));
  if (out.pre_tokenizer.byte_level == marks) {
    return refused(marks ? "a ByteLevel pre_tokenizer with a normalizer"
                         : "neither a ByteLevel pre_tokenizer nor a normalizer",
                   "one of the two");
  }
  MUSTER_CHECK(read_vocab(*model, out));
  MUSTER_CHECK(read_merges(*model, out));
  MUSTER_CHECK(read_added(*root, out));
  MUSTER_CHECK(check_decoder(member(*root, "decoder"), out));
  MUSTER_CHECK(check_post_processor(member(*root, "post_processor")));
  for (const auto& token : out.added) {
    if (marks && token.normalized && !token.special) {
      return refused("added token \"" + token.content + "\", normalized and not special, with a normalizer",
                     "added tokens with normalized false");
    }
  }
  return out;
}

Result<SpecialIds> find_special_ids(const std::string& folder, const TokenizerJson& tokenizer) {
  SpecialIds out;
  for (const std::string name : kSpecialFiles) {
    const auto path = folder + "/" + name;
    if (!std::filesystem::exists(path)) continue;
    MUSTER_TRY(const auto bytes, read_regular_file(path));
    const auto config = json::parse_object(bytes);
    if (!config) return broken(path + ": " + config.error().message);
    const auto look = [&](const std::string& token, TokenId& id) -> Result<void> {
      if (id >= 0) return {};
      auto found = name == kSpecialFiles[0] ? id_of_named(*config, token, tokenizer)
                                            : Result<TokenId>(first_id(*config, token + "_id"));
      if (!found) return tl::unexpected(found.error().with_context(path));
      if (*found >= static_cast<TokenId>(tokenizer.tokens.size())) {
        return broken(path + ": " + token + "_id " + std::to_string(*found) +
                      " is outside the vocabulary of " + std::to_string(tokenizer.tokens.size()) + " ids");
      }
      id = *found;
      return {};
    };
    MUSTER_CHECK(look("bos_token", out.bos));
    MUSTER_CHECK(look("eos_token", out.eos));
  }
  return out;
}

}  // namespace muster::text::detail
