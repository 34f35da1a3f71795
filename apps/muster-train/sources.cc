#include "apps/muster-train/sources.h"

namespace muster::train {

Result<Sources> read_sources(const SourceArguments& arguments) {
  std::vector<Setting> settings;
  if (!arguments.file.empty()) {
    MUSTER_TRY(settings, read_toml(arguments.file));
  }
  Sources sources;
  MUSTER_TRY(sources.job, read_job(arguments.job_root));
  settings.insert(settings.end(), sources.job.settings.begin(), sources.job.settings.end());
  for (const auto& text : arguments.sets) {
    MUSTER_TRY(Setting setting, parse_assignment(text));
    settings.push_back(std::move(setting));
  }
  MUSTER_TRY(settings, with_pretrained(std::move(settings)));
  MUSTER_TRY(sources.config, resolve(settings));
  return sources;
}

}  // namespace muster::train
