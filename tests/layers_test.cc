// Every #include between folders of src/ is an edge that cmake/layers.txt allows.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "base/file.h"
#include "base/text.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

using Layers = std::map<std::string, std::set<std::string>, std::less<>>;

Layers read_layers(const std::string& text) {
  Layers layers;
  for (const auto line : split(text, '\n')) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words{std::string(line)};
    std::string folder;
    words >> folder;
    auto& allowed = layers[folder];
    for (std::string word; words >> word;) allowed.insert(word);
  }
  return layers;
}

std::string top(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }

// The line of the table that rules a folder: its longest prefix.
const std::set<std::string>* rule_of(const Layers& layers, const std::string& folder) {
  for (auto path = folder;; path = path.substr(0, path.rfind('/'))) {
    const auto it = layers.find(path);
    if (it != layers.end()) return &it->second;
    if (path.find('/') == std::string::npos) return nullptr;
  }
}

std::vector<std::string> own_includes(const std::string& text, const fs::path& source) {
  std::vector<std::string> out;
  for (const auto line : split(text, '\n')) {
    constexpr std::string_view kInclude = "#include \"";
    if (line.substr(0, kInclude.size()) != kInclude) continue;
    const std::string name(line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size()));
    if (fs::exists(source / name)) out.push_back(name);
  }
  return out;
}

std::vector<std::string> violations(const Layers& layers, const fs::path& source) {
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(source)) {
    const auto extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc") continue;
    const auto file = fs::relative(entry.path(), source).string();
    if (file.find("_test.cc") != std::string::npos || file.find("/testing/") != std::string::npos ||
        file.find("/contract/") != std::string::npos) {
      continue;  // tests may see more
    }
    const auto folder = fs::path(file).parent_path().string();
    const auto* allowed = rule_of(layers, folder);
    if (allowed == nullptr) {
      found.push_back(file + ": no line in cmake/layers.txt");
      continue;
    }
    const auto text = read_file(entry.path().string()).value();
    for (const auto& include : own_includes(text, source)) {
      const auto target = top(include);
      if (target != top(file) && allowed->count(target) == 0) found.push_back(file + " includes " + include);
    }
  }
  return found;
}

TEST(Layers, EveryIncludeIsAnAllowedEdge) {
  const fs::path root = MUSTER_SOURCE_DIR;
  const auto layers = read_layers(read_file((root / "cmake/layers.txt").string()).value());
  for (const auto& violation : violations(layers, root / "src")) ADD_FAILURE() << violation;
}

TEST(Layers, AForbiddenIncludeIsFound) {
  const TempDir dir;
  for (const auto* folder : {"base", "control", "net"}) ASSERT_TRUE(make_directories(dir / folder));
  ASSERT_TRUE(write_file_atomic(dir / "net/http.h", ""));
  ASSERT_TRUE(write_file_atomic(dir / "base/error.h", ""));
  ASSERT_TRUE(
      write_file_atomic(dir / "control/a.cc", "#include \"base/error.h\"\n#include \"net/http.h\"\n"));
  const auto found = violations(read_layers("base\ncontrol base\nnet base\n"), dir.path());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], "control/a.cc includes net/http.h");
}

}  // namespace
}  // namespace muster
