// Bad requests made from the descriptor of every operation: each is refused with the field's name and nothing is written.
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class RefusalTest : public testing::Test {
 protected:
  // Runs `check(op, rule, schema)` for a fresh legal request of every operation and every field of it that `is_of_interest`.
  template <class Filter, class Check>
  void ForEachField(const Filter& is_of_interest, const Check& check) {
    int fields = 0;
    for (const auto& op : runner_.registry().ops()) {
      for (const FieldRule& rule : op->schema().fields()) {
        v1::Op request = builder_.Build(op->schema(), FullSpec(op->name()));
        if (!is_of_interest(rule, *MutableRequest(&request))) continue;
        SCOPED_TRACE(absl::StrCat(op->name(), ".", rule.name));
        check(request, rule);
        ++fields;
      }
    }
    EXPECT_GT(fields, 0);
  }

  // The call is refused as INVALID_ARGUMENT with this field.
  void ExpectRefused(const v1::Op& op, const std::string& field) {
    EXPECT_EQ(Refusal(runner_.Run(op)), "INVALID_ARGUMENT " + field);
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

bool IsPresentTensor(const FieldRule& rule, const Message& request) {
  return rule.is_tensor && HasField(request, rule);
}

TEST_F(RefusalTest, TheFullCallsAreLegal) {
  for (const auto& op : runner_.registry().ops()) {
    ASSERT_FALSE(FullSpec(op->name()).outputs.empty())
        << "give " << op->name() << " a full call above";
    EXPECT_OK(runner_.Run(builder_.Build(op->schema(), FullSpec(op->name())))) << op->name();
  }
}

TEST_F(RefusalTest, WrongElementType) {
  ForEachField(IsPresentTensor, [&](v1::Op& op, const FieldRule& rule) {
    v1::Tensor* tensor = MutableTensor(MutableRequest(&op), rule);
    tensor->set_dtype(tensor->dtype() == v1::U8 ? v1::F32 : v1::U8);
    ExpectRefused(op, rule.name);
  });
}

TEST_F(RefusalTest, NoElementType) {
  ForEachField(IsPresentTensor, [&](v1::Op& op, const FieldRule& rule) {
    MutableTensor(MutableRequest(&op), rule)->clear_dtype();
    ExpectRefused(op, rule.name);
  });
}

TEST_F(RefusalTest, TooFewAndTooManyDimensions) {
  ForEachField(IsPresentTensor, [&](v1::Op& op, const FieldRule& rule) {
    v1::Tensor* tensor = MutableTensor(MutableRequest(&op), rule);
    for (int i = 0; i < 7; ++i) tensor->add_shape(1);
    ExpectRefused(op, rule.name);
    tensor->clear_shape();
    ExpectRefused(op, rule.name);
  });
}

TEST_F(RefusalTest, NegativeAndEnormousExtents) {
  ForEachField(IsPresentTensor, [&](v1::Op& op, const FieldRule& rule) {
    v1::Tensor* tensor = MutableTensor(MutableRequest(&op), rule);
    tensor->set_shape(0, -1);
    ExpectRefused(op, rule.name);
    tensor->set_shape(0, std::numeric_limits<int64_t>::max());
    ExpectRefused(op, rule.name);
  });
}

TEST_F(RefusalTest, InlineBytesOfTheWrongLength) {
  ForEachField([](const FieldRule& rule,
                  const Message& request) { return rule.is_input() && HasField(request, rule); },
               [&](v1::Op& op, const FieldRule& rule) {
                 MutableTensor(MutableRequest(&op), rule)->mutable_inline_data()->push_back('x');
                 ExpectRefused(op, rule.name);
               });
}

TEST_F(RefusalTest, RegionsWithoutASession) {
  ForEachField(IsPresentTensor, [&](v1::Op& op, const FieldRule& rule) {
    MutableTensor(MutableRequest(&op), rule)->mutable_region()->set_region(12345);
    EXPECT_EQ(Refusal(runner_.Run(op)), "NOT_FOUND " + rule.name);
  });
}

TEST_F(RefusalTest, RequiredFieldsThatAreMissing) {
  ForEachField([](const FieldRule& rule,
                  const Message&) { return rule.tensor.required() || rule.scalar.required(); },
               [&](v1::Op& op, const FieldRule& rule) {
                 Message* holder = MutableHolder(MutableRequest(&op), rule);
                 holder->GetReflection()->ClearField(holder, rule.descriptor);
                 ExpectRefused(op, rule.name);
               });
}

TEST_F(RefusalTest, RealOptionsThatAreNotFinite) {
  ForEachField(
      [](const FieldRule& rule, const Message&) {
        return rule.is_option() && rule.descriptor->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
      },
      [&](v1::Op& op, const FieldRule& rule) {
        Message* holder = MutableHolder(MutableRequest(&op), rule);
        for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
          holder->GetReflection()->SetDouble(holder, rule.descriptor, bad);
          ExpectRefused(op, rule.name);
        }
      });
}

TEST_F(RefusalTest, OptionsOutsideTheirBounds) {
  ForEachField(
      [](const FieldRule& rule, const Message&) {
        return rule.is_option() && (rule.scalar.has_min() || rule.scalar.has_above());
      },
      [&](v1::Op& op, const FieldRule& rule) {
        Message* holder = MutableHolder(MutableRequest(&op), rule);
        const double bound = rule.scalar.has_min() ? rule.scalar.min() - 1 : rule.scalar.above();
        if (rule.descriptor->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
          holder->GetReflection()->SetDouble(holder, rule.descriptor, bound);
        } else {
          holder->GetReflection()->SetInt64(holder, rule.descriptor, static_cast<int64_t>(bound));
        }
        ExpectRefused(op, rule.name);
      });
}

TEST_F(RefusalTest, EnumValuesThatDoNotExist) {
  ForEachField(
      [](const FieldRule& rule, const Message&) {
        return rule.is_option() && rule.descriptor->enum_type() != nullptr;
      },
      [&](v1::Op& op, const FieldRule& rule) {
        Message* holder = MutableHolder(MutableRequest(&op), rule);
        holder->GetReflection()->SetEnumValue(holder, rule.descriptor, 0);
        ExpectRefused(op, rule.name);
        holder->GetReflection()->SetEnumValue(holder, rule.descriptor, 4321);
        ExpectRefused(op, rule.name);
      });
}

// Options of a list's entries keep the rules of other options, and are named with their place.
TEST_F(RefusalTest, EntriesOfLists) {
  ForEachField([](const FieldRule& rule, const Message&) { return !rule.elements.empty(); },
               [&](v1::Op& op, const FieldRule& rule) {
                 const v1::Op legal = op;
                 const auto last = [&](v1::Op* of) {
                   Message* holder = MutableHolder(MutableRequest(of), rule);
                   const auto* reflection = holder->GetReflection();
                   return reflection->MutableRepeatedMessage(
                       holder, rule.descriptor,
                       reflection->FieldSize(*holder, rule.descriptor) - 1);
                 };
                 const std::string prefix = absl::StrCat(rule.name, "[1].");
                 for (const FieldRule& element : rule.elements) {
                   const auto refused_with = [&](const auto& change) {
                     op = legal;
                     change(last(&op), element.descriptor);
                     ExpectRefused(op, prefix + element.name);
                   };
                   if (element.scalar.required()) {
                     refused_with([](Message* entry, const FieldDescriptor* field) {
                       entry->GetReflection()->ClearField(entry, field);
                     });
                   }
                   if (element.descriptor->enum_type() != nullptr) {
                     for (const int bad : {0, 4321}) {
                       refused_with([&](Message* entry, const FieldDescriptor* field) {
                         entry->GetReflection()->SetEnumValue(entry, field, bad);
                       });
                     }
                   }
                   if (element.descriptor->cpp_type() != FieldDescriptor::CPPTYPE_DOUBLE) continue;
                   std::vector<double> wrong = {std::nan(""), HUGE_VAL, -HUGE_VAL};
                   if (element.scalar.has_min()) wrong.push_back(element.scalar.min() - 1);
                   if (element.scalar.has_above()) wrong.push_back(element.scalar.above());
                   if (element.scalar.has_below()) wrong.push_back(element.scalar.below());
                   for (const double bad : wrong) {
                     refused_with([&](Message* entry, const FieldDescriptor* field) {
                       entry->GetReflection()->SetDouble(entry, field, bad);
                     });
                   }
                 }
                 op = legal;
                 Message* entry = last(&op);
                 entry->GetReflection()->MutableUnknownFields(entry)->AddVarint(999, 1);
                 ExpectRefused(op, prefix + "#999");
               });
}

TEST_F(RefusalTest, NothingIsAddedToAnAccumulatedOutput) {
  const std::vector<float> before(11 * 5, 2.5f);
  std::vector<float> memory = before;
  const uint64_t region = runner_.AddRegion(memory.data(), memory.size() * sizeof(float));
  for (const auto& op : runner_.registry().ops()) {
    if (op->schema().Find("grad_weight") == nullptr || op->schema().Find("target") == nullptr) {
      continue;
    }
    RequestSpec spec = FullSpec(op->name());
    spec.options += " grad_weight_mode=ACCUMULATE";
    v1::Op request = builder_.Build(op->schema(), spec);
    Message* message = MutableRequest(&request);
    MutableTensor(message, *op->schema().Find("grad_weight"))->mutable_region()->set_region(region);
    v1::Tensor* target = MutableTensor(message, *op->schema().Find("target"));
    std::vector<double> ids = Elements(*target);
    ids.back() = 11;  // one id past the vocabulary, in the last row
    SetElements(ids, target);
    EXPECT_EQ(Refusal(runner_.Run(request)), "INVALID_ARGUMENT target") << op->name();
    EXPECT_EQ(memory, before) << op->name();
    ids.back() = 1;
    SetElements(ids, target);
    EXPECT_OK(runner_.Run(request));
    EXPECT_NE(memory, before) << op->name() << ": a call that adds nothing proves nothing";
    memory = before;
  }
}

// Every byte of a request in turn: whatever it becomes, the server answers with a status.
TEST_F(RefusalTest, NoDamagedMessageIsFatal) {
  for (const auto& op : runner_.registry().ops()) {
    const std::string bytes =
        builder_.Build(op->schema(), FullSpec(op->name())).SerializeAsString();
    std::mt19937_64 random(3);
    int parsed = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = bytes;
      for (int k = 0; k < 1 + i % 3; ++k)
        damaged[random() % damaged.size()] = static_cast<char>(random());
      v1::Op request;
      if (!request.ParseFromString(damaged)) continue;
      ++parsed;
      (void)runner_.Run(request);
    }
    EXPECT_GT(parsed, 100);
  }
}

}  // namespace
}  // namespace lossd
