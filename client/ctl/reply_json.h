// Replies as JSON, in the tensor format of the conformance vectors.
#ifndef LOSSD_CLIENT_CTL_REPLY_JSON_H_
#define LOSSD_CLIENT_CTL_REPLY_JSON_H_

#include "lossd/v1/service.pb.h"
#include "nlohmann/json.hpp"

namespace lossd::ctl {

// NaN and infinities are the strings "nan", "inf", "-inf". Absent numbers are left out.
nlohmann::ordered_json ReplyToJson(const v1::OpReply& reply);

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_REPLY_JSON_H_
