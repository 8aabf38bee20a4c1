/* The C interface of liblpsgd.so, which the Python package beside it loads: the coding of an exchange whose
   messages the caller moves (comm/message_coder.h). Functions that can fail return 0, or -1 and leave a
   message for lpsgd_last_error(). A coder is used by one thread at a time. */
#ifndef LPSGD_PYTHON_C_API_H_
#define LPSGD_PYTHON_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts incompatible changes of this file. */
enum { lpsgd_api_version_of_header = 2 };
int lpsgd_api_version(void);
/* Of docs/wire-format.md. */
int lpsgd_wire_format_version(void);
/* Of the last call of this thread that failed; valid until its next call. */
const char* lpsgd_last_error(void);

typedef struct lpsgd_coder lpsgd_coder;

typedef struct {
  const char* name;
  const char* kind;     /* conv, dense, norm, bias, lstm or embedding: for the policy's rules */
  const int64_t* shape; /* of the gradient as it lies in memory */
  size_t dimensions;
} lpsgd_tensor;

typedef struct {
  int32_t rank, ranks;
  uint32_t seed;
  int32_t cuda_device;                    /* -1: gradients and messages are on the CPU */
  void *gradient_stream, *message_stream; /* of a CUDA device, cudaStream_t; two different streams */
} lpsgd_options;

/* `policy` is YAML: the keys codec, min_elements and rules of the configuration's section `exchange`. A
   codec's columns are those of a matrix with the first dimension as rows and all others as columns. */
int lpsgd_coder_new(const char* policy, const lpsgd_tensor* tensors, size_t count,
                    const lpsgd_options* options, lpsgd_coder** coder);
void lpsgd_coder_free(lpsgd_coder* coder);
/* The codec of a tensor, as in the configuration. NULL if there is no such tensor. Valid as long as the
 * coder. */
const char* lpsgd_codec_of(const lpsgd_coder* coder, size_t tensor);
/* What of the policy has no effect, a line each. Valid as long as the coder. */
const char* lpsgd_warnings(const lpsgd_coder* coder);

/* A bucket of `count` tensors with the places of their gradients (float32). */
int lpsgd_add_bucket(lpsgd_coder* coder, const size_t* tensors, float* const* gradients, size_t count,
                     size_t* bucket);
/* From the next lpsgd_encode on, the gradients of the bucket lie in other places. Not on a CUDA device. */
int lpsgd_move_bucket(lpsgd_coder* coder, size_t bucket, float* const* gradients, size_t count);
int lpsgd_drop_bucket(lpsgd_coder* coder, size_t bucket);

enum { lpsgd_outgoing = 0, lpsgd_incoming = 1, lpsgd_mean = 2 };
/* The message of a bucket to (outgoing) or from (incoming, mean) another rank; lpsgd_mean of the own rank is
 * sent to all. */
int lpsgd_message(lpsgd_coder* coder, size_t bucket, int which, int32_t rank, void** bytes, size_t* size);

int lpsgd_begin(lpsgd_coder* coder, uint32_t step);
int lpsgd_encode(lpsgd_coder* coder, size_t bucket);
int lpsgd_reduce(lpsgd_coder* coder, size_t bucket);
int lpsgd_decode(lpsgd_coder* coder, size_t bucket);
int lpsgd_end(lpsgd_coder* coder);
/* Seconds of encoding and decoding since the last call. */
int lpsgd_take_seconds(lpsgd_coder* coder, double* encode, double* decode);

/* Residuals of round 1 or 2, float32 in host memory: with values NULL, get only tells their number. */
int lpsgd_get_residual(const lpsgd_coder* coder, size_t tensor, int round, float* values, size_t* count);
int lpsgd_set_residual(lpsgd_coder* coder, size_t tensor, int round, const float* values, size_t count);

/* Sets all residuals of this rank from those of `old_ranks` ranks, which may be another number: round 1 is
   the mean of theirs, round 2 is cut anew along the new stripes. `values` and `counts` (float32, as
   lpsgd_get_residual() gave them) are by old rank, tensor and round. Changes nothing if it fails. */
int lpsgd_redistribute_residuals(lpsgd_coder* coder, int32_t old_ranks, const float* const* values,
                                 const size_t* counts);

#ifdef __cplusplus
}
#endif
#endif
