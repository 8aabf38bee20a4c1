// A libcuda.so.1 that can be found. The emulated runtime calls nothing in it.
int lpsgd_emulated_driver(void) {
  return 0;
}
