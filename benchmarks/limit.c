/* The minimal cost of a float32 allreduce between processes on one host, for
 * benchmarks/allreduce.py: no negotiation, no fusion, no fault handling, one operation at a time.
 * The additional time of a runtime is its overhead.
 *
 * Each rank maps one file, which contains for each rank a line of counters, two banks of a chunk,
 * and a buffer that all ranks can access. */
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kLine = 64, kMaxRanks = 64, kBanks = 2, kChunk = 64 << 10, kSpins = 50 }; /* in floats */

typedef struct {
  _Alignas(kLine) atomic_uint_fast64_t reached;
} Counter;

typedef struct {
  int rank, size;
  uint64_t steps;
  size_t capacity; /* floats of a shared buffer */
  Counter* counters;
  float* banks;
  float* buffers;
} Limit;

static size_t bank_floats(const Limit* limit) { return (size_t)limit->size * kBanks * kChunk; }

Limit* limit_open(const char* path, int rank, int size, size_t capacity) {
  Limit* limit = calloc(1, sizeof(Limit));
  if (limit == NULL || size > kMaxRanks) return NULL;
  *limit = (Limit){.rank = rank, .size = size, .capacity = capacity};
  const size_t head = kMaxRanks * sizeof(Counter);
  const size_t bytes = head + 4 * (bank_floats(limit) + (size_t)size * capacity);
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) return NULL;
  char* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return NULL;
  limit->counters = (Counter*)memory;
  limit->banks = (float*)(memory + head);
  limit->buffers = limit->banks + bank_floats(limit);
  return limit;
}

float* limit_buffer(const Limit* limit, int rank) {
  return limit->buffers + (size_t)rank * limit->capacity;
}

/* All ranks have done `step` steps. */
static void wait_for(const Limit* limit, uint64_t step) {
  for (int rank = 0; rank < limit->size; ++rank) {
    for (int polls = 0; atomic_load(&limit->counters[rank].reached) < step; ++polls) {
      if (polls < kSpins) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }
}

static void meet(Limit* limit) {
  atomic_store(&limit->counters[limit->rank].reached, ++limit->steps);
  wait_for(limit, limit->steps);
}

static void add(float* restrict out, const float* const* in, int size, size_t count) {
  /* In pieces that stay in the nearest cache while the ranks' values are added one by one. */
  enum { kPiece = 2048 };
  for (size_t first = 0; first < count; first += kPiece) {
    const size_t end = count - first < kPiece ? count : first + kPiece;
    for (size_t i = first; i < end; ++i) out[i] = in[0][i] + in[1][i];
    for (int rank = 2; rank < size; ++rank) {
      for (size_t i = first; i < end; ++i) out[i] += in[rank][i];
    }
  }
}

static float* bank(const Limit* limit, int rank, uint64_t chunk) {
  return limit->banks + ((size_t)rank * kBanks + chunk % kBanks) * kChunk;
}

/* In place, on the caller's memory. Chunk by chunk, each rank copies in, then sums all. */
void limit_allreduce(Limit* limit, float* data, size_t count) {
  const float* in[kMaxRanks];
  for (uint64_t chunk = 0; chunk * kChunk < count; ++chunk) {
    const size_t first = chunk * kChunk;
    const size_t floats = count - first < kChunk ? count - first : kChunk;
    /* A rank that has reached the previous step has read the bank that is written now. */
    memcpy(bank(limit, limit->rank, limit->steps), data + first, 4 * floats);
    for (int rank = 0; rank < limit->size; ++rank) in[rank] = bank(limit, rank, limit->steps);
    meet(limit);
    if (limit->size > 1) add(data + first, in, limit->size, floats);
  }
}

/* In place, on shared buffers: each rank sums its slice and writes it to all ranks. */
void limit_allreduce_shared(Limit* limit, size_t count) {
  const size_t slice = (count + (size_t)limit->size - 1) / (size_t)limit->size;
  const size_t begin = (size_t)limit->rank * slice < count ? (size_t)limit->rank * slice : count;
  const size_t end = begin + slice < count ? begin + slice : count;
  float piece[1024];
  meet(limit);
  for (size_t first = begin; first < end && limit->size > 1; first += 1024) {
    const size_t floats = end - first < 1024 ? end - first : 1024;
    const float* in[kMaxRanks];
    for (int rank = 0; rank < limit->size; ++rank) in[rank] = limit_buffer(limit, rank) + first;
    add(piece, in, limit->size, floats);
    for (int rank = 0; rank < limit->size; ++rank) {
      memcpy(limit_buffer(limit, rank) + first, piece, 4 * floats);
    }
  }
  meet(limit);
}
