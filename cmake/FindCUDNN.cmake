# Finds cuDNN >= 9 beside the CUDA toolkit, in CUDNN_ROOT, or where Python packages leave it
# (nvidia/cudnn), and gives the imported target CUDNN::cudnn.
set(_roots ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR})
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${_roots} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
# The file with its version in the name is all that Python's packages hold.
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${_roots} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib64 lib)
foreach(_header cudnn_version.h cudnn_version_v9.h)
  if(CUDNN_INCLUDE_DIR AND NOT CUDNN_VERSION AND EXISTS ${CUDNN_INCLUDE_DIR}/${_header})
    file(STRINGS ${CUDNN_INCLUDE_DIR}/${_header} _v REGEX "#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) +[0-9]+")
    if(_v MATCHES "MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCHLEVEL +([0-9]+)")
      set(CUDNN_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
    endif()
  endif()
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
if(CUDNN_FOUND AND NOT TARGET CUDNN::cudnn)
  add_library(CUDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(CUDNN::cudnn PROPERTIES
    IMPORTED_LOCATION ${CUDNN_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${CUDNN_INCLUDE_DIR})
endif()
