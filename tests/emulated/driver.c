// A libcuda.so.1 to be found: the emulated runtime asks nothing of it.
int lpsgd_emulated_driver(void) {
  return 0;
}
