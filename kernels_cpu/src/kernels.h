// kernels.h: what one instruction set offers. Each isa_*.cpp fills one Isa from the same templates, so every
// set runs the same float operations in the same order; only integer arithmetic, which is exact, differs, and the fma,
// which the generic set rounds twice.
#pragma once
#include <cstddef>
#include <cstdint>

namespace er {

// How a linear kernel wants its input. One quantized copy serves every weight that shares the input and the Act.
enum Act : int {
  ACT_Q8 = 0,   // int8 in blocks of 32, a second digit where a block towers over the others (act_q8.h)
  ACT_F32 = 1,  // plain float
  N_ACTS = 2,
};

// What becomes of a product's results on their way to out: one of the two, or neither.
struct After {
  const float* add;   // null, or what is added, [M][ld_add], from the same row of the matrix on
  int64_t ld_add;
  const uint8_t* up;  // null, or tiles of a second matrix of the same type, whose results those of the first gate
  int glu;            // how: float_ops.h's Glu
};

// One ggml type. A tile is `tile_rows` weight rows interleaved over all of K; tiles are contiguous.
struct Linear {
  int type;       // ggml type id
  Act act;
  int tile_rows;
  int block_k;    // K is a multiple of this
  size_t (*tile_bytes)(int K);
  // `rows` (<= tile_rows) GGUF rows, `row_bytes` apart -> one tile; missing rows decode to zero.
  void (*pack)(const uint8_t* src, size_t row_bytes, int rows, int K, uint8_t* dst);
  // out[m * ldo + r] for r < tiles * tile_rows, m < M. `act` holds M columns as written by Linears::quantize, `scratch` what
  // Linears::index made of them.
  // The bits of one output depend on its row, its column and K alone.
  void (*run)(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t* scratch);
  // Row r of a tile as float [K], the bits of the file format's dequantizer.
  void (*unpack_row)(const uint8_t* tile, int r, int K, float* out);
  // run, and what comes after, in one go: the bits of the single steps. False: not for so few columns, or not in this set, and
  // nothing is done. Null: never.
  bool (*run_after)(const uint8_t* w, int tiles, const uint8_t* act, int K, int M, float* out, int64_t ldo, uint8_t* scratch,
                    const After& after) = nullptr;
};

struct Linears {
  const Linear* (*find)(int type);  // null: no such type
  size_t (*act_bytes)(Act act, int K, int M);
  // Columns m0..m1 of an M-column operand; x is [M][ldx]. Columns may be written by different threads.
  void (*quantize)(Act act, const float* x, int64_t ldx, int K, int M, int m0, int m1, uint8_t* out);
  size_t (*scratch_bytes)(int K, int M);  // per thread, 64-byte aligned
  // Once all columns are there, by each thread: what the kernels want to know of them, at the start of its scratch.
  void (*index)(Act act, const uint8_t* columns, int K, int M, uint8_t* scratch);
};

// Tiles that one column meets at a time, and bytes by which its kernel fetches each ahead; their beginnings it does not fetch.
enum { STREAMS = 4, STREAM_AHEAD = 3072 };

struct FloatOps;  // float_ops.h: norms, rope, attention, glu

struct Isa {
  const char* name;
  Linears linear;
  const FloatOps* ops;
};

// Best first; null-terminated list of the sets this build holds and this machine can run.
const Isa* const* isas();
const Isa* find_isa(const char* name);

}  // namespace er
