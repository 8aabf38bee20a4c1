#include "trainer/mpirun.h"

namespace lpsgd {

const char* mpirun() {
  return LPSGD_MPIRUN;
}

}  // namespace lpsgd
