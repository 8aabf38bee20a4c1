// An empty libcuda.so.1. The program looks for the file; the emulated runtime calls nothing in it.
int lpsgd_emulated_driver(void) {
  return 0;
}
