// A legal call of every operation, for tests that go through all of them.
#ifndef LOSSD_TESTS_TESTING_FULL_SPEC_H_
#define LOSSD_TESTS_TESTING_FULL_SPEC_H_

#include <string>

#include "tests/testing/request_builder.h"

namespace lossd {

// As many fields as are legal together. Without outputs if the operation is not known here.
RequestSpec FullSpec(const std::string& op);

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_FULL_SPEC_H_
