// Calls in the terms of a plan, and what was decided for each kind and size of them.

#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace loadmaster {

// A function like cuLaunchKernel.
using Enqueue = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

// One kernel. `fields` begins with the addresses of input and output.
struct Launch {
  void* function;
  unsigned blocks;
  unsigned threads;
  uint64_t* fields;
  uint64_t begin;
};

struct Region {
  uintptr_t begin;
  uintptr_t end;
  int64_t number;
};

// The decision for calls of one kind and size.
struct Entry {
  std::string detail;  // the engine; or why the inner backend has it
  std::vector<Launch> launches;
  size_t input_bytes = 0;
  size_t output_bytes = 0;
  bool planned = false;
  std::atomic<int64_t> calls{0};
};

struct Key {
  const char* collective;  // one of the names below: compared by address
  int64_t root;
  int op;
  c10::ScalarType dtype;
  size_t size_bytes;
  int64_t region;  // of memory that all ranks share; -1: none
  bool operator==(const Key& other) const {
    return collective == other.collective && root == other.root && op == other.op && dtype == other.dtype &&
        size_bytes == other.size_bytes && region == other.region;
  }
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    size_t hash = std::hash<const void*>()(key.collective);
    for (size_t part : {size_t(key.root + 1), size_t(key.op), size_t(key.dtype), key.size_bytes, size_t(key.region + 1)}) {
      hash = hash * 0x9E3779B97F4A7C15ull + part;
    }
    return hash;
  }
};

const char* const ALLREDUCE = "allreduce";
const char* const ALLGATHER = "allgather";
const char* const REDUCE_SCATTER = "reduce_scatter";
const char* const ALLTOALL = "alltoall";
const char* const BROADCAST = "broadcast";
const char* const REDUCE = "reduce";

// A call, in the terms of a plan.
struct Call {
  const char* collective;
  c10d::OpType type;
  const at::Tensor* output;  // null: not on this rank
  const at::Tensor* input;
  size_t size_bytes;  // of the largest buffer of a rank
  bool later;         // the caller goes on without it
  const c10d::ReduceOp* op = nullptr;
  int64_t root = -1;
};

inline size_t bytes_of(const at::Tensor* tensor) { return tensor ? tensor->nbytes() : 0; }

}  // namespace loadmaster
