// The object store of a job over data/s3, with the job's own credentials.
#pragma once

#include "runner/credentials.h"
#include "runner/transfer/objects.h"

namespace muster::runner {

// While the endpoint refuses or resets connections it counts as away and is waited for, each request up to
// 10 min; one that answers that it cannot (503, for example) is asked again for some two minutes.
// `credentials` outlives the store. Threading: as Objects.
Result<std::unique_ptr<Objects>> s3_objects(const std::string& endpoint_url, const std::string& region,
                                            CredentialsCache& credentials);

}  // namespace muster::runner
