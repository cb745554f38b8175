// Buffers of both kinds behind lossd::Buffer.
#ifndef LOSSD_CLIENT_CPP_BUFFER_H_
#define LOSSD_CLIENT_CPP_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/cpp/client.h"
#include "client/cpp/shared_memory.h"

namespace lossd::client {

// What a buffer needs of its client.
class BufferHost {
 public:
  virtual ~BufferHost() = default;
  virtual absl::Status UploadTo(uint64_t region, uint64_t byte_offset, absl::string_view bytes) = 0;
  virtual absl::Status DownloadFrom(uint64_t region, uint64_t byte_offset, std::byte* to,
                                    uint64_t bytes) = 0;
  // At the server, and in the client's list. Never fails: what cannot be told to the server ends with the session.
  virtual void Release(uint64_t region) = 0;
};

// A region, mapped here (`memory`) or not. Thread-safe but for the bytes.
class RegionBuffer final : public Buffer {
 public:
  RegionBuffer(BufferHost* host, uint64_t region, uint64_t bytes,
               std::shared_ptr<SharedMemory> memory)
      : host_(host), region_(region), bytes_(bytes), memory_(std::move(memory)) {}
  ~RegionBuffer() override { host_->Release(region_); }

  std::byte* data() override { return memory_ == nullptr ? nullptr : memory_->data(); }
  uint64_t bytes() const override { return bytes_; }
  uint64_t region() const override { return region_; }
  absl::Status Write(uint64_t byte_offset, absl::string_view bytes) override;
  absl::Status Read(uint64_t byte_offset, std::byte* to, uint64_t bytes) override;

 private:
  absl::Status CheckRange(uint64_t byte_offset, uint64_t bytes) const;

  BufferHost* const host_;
  const uint64_t region_;
  const uint64_t bytes_;
  const std::shared_ptr<SharedMemory> memory_;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_BUFFER_H_
