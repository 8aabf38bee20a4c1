# Finds NCCL >= 2.18 and gives the imported target NCCL::NCCL. It looks beside CUDA, at NCCL_ROOT, and in the folder
# that Python's nvidia-nccl package brings, which has no libnccl.so but libnccl.so.2 alone.
set(_nccl_hints ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME})
find_program(NCCL_PYTHON NAMES python3)
mark_as_advanced(NCCL_PYTHON)
if(NCCL_PYTHON)
  execute_process(COMMAND ${NCCL_PYTHON} -c "import nvidia; print(';'.join(p + '/nccl' for p in nvidia.__path__))"
    OUTPUT_VARIABLE _nccl_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_hints} ${CUDAToolkit_INCLUDE_DIRS} ${_nccl_python} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${_nccl_hints} ${CUDAToolkit_LIBRARY_DIR} ${_nccl_python} PATH_SUFFIXES lib lib64)
if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h _v REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NCCL_VERSION "${_v}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
