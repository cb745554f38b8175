// What a lossd_client is.
#ifndef LOSSD_CLIENT_C_HANDLES_H_
#define LOSSD_CLIENT_C_HANDLES_H_

#include <memory>

#include "client/c/lossd.h"
#include "client/cpp/client.h"
#include "client/embedded/embedded.h"

// One of the two.
struct lossd_client {
  std::shared_ptr<lossd::Client> client;
  std::shared_ptr<lossd::Embedded> embedded;
};

#endif  // LOSSD_CLIENT_C_HANDLES_H_
