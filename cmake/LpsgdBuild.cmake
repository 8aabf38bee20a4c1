# Compiler settings, CUDA detection and the helpers that declare lpsgd's targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

# Every float operation rounds once, in the order written: the wire format depends on it.
# Errors name their place in the source from the repository's root.
add_library(lpsgd_options INTERFACE)
target_compile_options(lpsgd_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno;-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=;-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wold-style-cast;-Wcast-qual;-Woverloaded-virtual>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-ffp-contract=off,-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)
if(LPSGD_WERROR)
  target_compile_options(lpsgd_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>)
endif()
target_include_directories(lpsgd_options INTERFACE ${CMAKE_SOURCE_DIR})
if(LPSGD_SANITIZE)
  # What is not sanitized has the options of a release build, so that the compiler's cache has it from there.
  set(LPSGD_SANITIZED "$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:LPSGD_IS_NOT_SANITIZED>>>>")
  add_compile_options("$<$<AND:$<CONFIG:Release>,${LPSGD_SANITIZED}>:-O1;-g1>")
  set(_options -fsanitize=${LPSGD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(LPSGD_SANITIZE MATCHES "undefined")
    # Null pointers stop the program anyway; the three checks of the default take a fifth of the time to compile. Of tests,
    # which are half of the sources, addresses are checked.
    list(APPEND _options -fno-sanitize=${LPSGD_SANITIZE_EXCEPT} $<$<BOOL:$<TARGET_PROPERTY:LPSGD_IS_TEST>>:-fno-sanitize=undefined>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # which then warns of optional values that are not there
    list(APPEND _options -Wno-maybe-uninitialized)
  endif()
  target_compile_options(lpsgd_options INTERFACE "$<${LPSGD_SANITIZED}:${_options}>")
  target_link_options(lpsgd_options INTERFACE -fsanitize=${LPSGD_SANITIZE})
endif()

if(LPSGD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "LPSGD_FUZZ needs Clang: -DCMAKE_CXX_COMPILER=clang++-16")
  endif()
  target_compile_options(lpsgd_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

set(LPSGD_HAVE_CUDA OFF)
set(LPSGD_EMULATED OFF)
if(LPSGD_CUDA STREQUAL "EMULATED")
  # tests/emulated has headers and libraries of its own: no part of CUDA is needed.
  set(CUDAToolkit_VERSION emulated)
  set(NCCL_FOUND ON)
  set(LPSGD_EMULATED ON)
  set(LPSGD_HAVE_CUDA ON)
  set(CMAKE_BUILD_RPATH ${CMAKE_BINARY_DIR}/emulated_driver)
  add_link_options(-Wl,--disable-new-dtags)  # so that the path holds for a sanitizer's dlopen, too
elseif(NOT LPSGD_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "75-real;80-real;90" CACHE STRING "GPU architectures: real code for these, PTX of the last")
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    find_package(CUDNN 9)
    if(CUDNN_FOUND AND TARGET CUDA::cublasLt)
      set(LPSGD_HAVE_CUDA ON)
    else()
      set(_severity WARNING)
      if(LPSGD_CUDA STREQUAL "ON")
        set(_severity FATAL_ERROR)
      endif()
      message(${_severity} "The CUDA backend needs cuDNN 9 (CUDNN_ROOT says where) and cuBLASLt beside the toolkit. "
        "LPSGD_CUDA=OFF builds without it.")
    endif()
  elseif(LPSGD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LPSGD_CUDA=ON, but no CUDA compiler was found; set CUDACXX or CMAKE_CUDA_COMPILER")
  endif()
endif()
if(LPSGD_EMULATED)
  message(STATUS "lpsgd: CUDA backend on an emulated GPU")
else()
  message(STATUS "lpsgd: CUDA backend ${LPSGD_HAVE_CUDA}")
endif()

# Of codecs on the host and of kernels on the emulated GPU, which are optimised also in debug builds. Under sanitizers -O2
# takes about twice as long to compile, and checks of addresses in line half as long again as those that are calls.
set(LPSGD_KERNEL_OPTIMISATION -O2)
if(LPSGD_SANITIZE)
  set(_optimisation -O1)
  if(LPSGD_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND _optimisation --param=asan-instrumentation-with-call-threshold=0)
  endif()
  set(LPSGD_KERNEL_OPTIMISATION "$<IF:${LPSGD_SANITIZED},${_optimisation},-O2>")
endif()

# lpsgd_not_sanitized(TARGET): unless LPSGD_SANITIZE_ALL, its sources are compiled as in a release build.
function(lpsgd_not_sanitized name)
  if(LPSGD_SANITIZE AND NOT LPSGD_SANITIZE_ALL)
    set_target_properties(${name} PROPERTIES LPSGD_IS_NOT_SANITIZED ON)
  endif()
endfunction()

# lpsgd_kernels(TARGET ISA SOURCES...): objects with the CPU's kernels for an instruction set. They are alike, so AVX2's
# alone are sanitized unless LPSGD_SANITIZE_ALL.
function(lpsgd_kernels name isa)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)  # they take long enough, one beside the other
  target_link_libraries(${name} PRIVATE lpsgd_options lpsgd_core)
  # A vector of 16 floats passed by value has another ABI on machines without AVX-512; ours never leave a file.
  target_compile_options(${name} PRIVATE -Wno-psabi)
  if(NOT isa STREQUAL "avx2")
    lpsgd_not_sanitized(${name})
  endif()
endfunction()

# A test, which is compiled for the compiler's speed, not for its own.
function(lpsgd_compile_as_test name)
  set_target_properties(${name} PROPERTIES LPSGD_IS_TEST ON)
  lpsgd_not_sanitized(${name})
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
endfunction()

# Lets the host's compiler take CUDA sources among these files, where the GPU is emulated.
function(lpsgd_emulate)
  list(FILTER ARGN INCLUDE REGEX "\\.cu$")
  if(LPSGD_EMULATED AND ARGN)
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
      "-x;c++;${LPSGD_KERNEL_OPTIMISATION};-fno-strict-aliasing;-Wno-unknown-pragmas;-Wno-old-style-cast;-Wno-shadow;-include;${CMAKE_SOURCE_DIR}/tests/emulated/device.h")
  endif()
endfunction()

# lpsgd_library(NAME SOURCES ... [CUDA_SOURCES ...] DEPENDS ...)
# A static library lpsgd_NAME. DEPENDS are linked publicly; an lpsgd library among them must lie below NAME.
set(LPSGD_LAYERS core quant comm nn data trainer python)
set(LPSGD_BELOW_core "")
set(LPSGD_BELOW_quant core)
set(LPSGD_BELOW_comm quant core)
set(LPSGD_BELOW_nn core)
set(LPSGD_BELOW_data core)
set(LPSGD_BELOW_trainer comm quant nn data core)
function(lpsgd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;CUDA_SOURCES;DEPENDS" ${ARGN})
  if(LPSGD_HAVE_CUDA)
    list(APPEND ARG_SOURCES ${ARG_CUDA_SOURCES})
  endif()
  lpsgd_emulate(${ARG_SOURCES})
  list(FILTER ARG_CUDA_SOURCES INCLUDE REGEX "\\.cu$")  # from 3.31 on CMake would compile them as one, too
  set_source_files_properties(${ARG_CUDA_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(lpsgd_${name} STATIC ${ARG_SOURCES})
  foreach(dep IN LISTS ARG_DEPENDS)
    if(dep MATCHES "^lpsgd_(.*)$" AND NOT CMAKE_MATCH_1 IN_LIST LPSGD_BELOW_${name})
      message(FATAL_ERROR "layering: ${name} may not depend on ${CMAKE_MATCH_1}")
    endif()
  endforeach()
  target_link_libraries(lpsgd_${name} PUBLIC lpsgd_options ${ARG_DEPENDS})
  if(LPSGD_HAVE_CUDA)
    target_compile_definitions(lpsgd_${name} PRIVATE LPSGD_HAVE_CUDA=1)
    target_link_libraries(lpsgd_${name} PRIVATE CUDA::cudart_static)
  endif()
endfunction()

# Of code that decides what is done in a step, and computes none of it: -O3 takes nearly twice as long to compile.
function(lpsgd_compile_quickly name)
  target_compile_options(${name} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()

# Of code whose speed does not count under sanitizers, where -O1 takes nearly twice as long to compile. (In fuzz targets it
# counts.)
function(lpsgd_sanitize_quickly name)
  if(LPSGD_SANITIZE AND NOT LPSGD_FUZZ)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()

# The headers of all tests, compiled once. Its options must be those of tests, which are position independent executables.
function(lpsgd_test_headers)
  file(CONFIGURE OUTPUT test_headers.cc CONTENT "")
  add_library(lpsgd_test_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cc)
  set_target_properties(lpsgd_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(lpsgd_test_headers PRIVATE GTest::gtest GTest::gmock lpsgd_core)
  target_compile_options(lpsgd_test_headers PRIVATE -fPIE)
  lpsgd_compile_as_test(lpsgd_test_headers)
  target_precompile_headers(lpsgd_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h>)
endfunction()

# lpsgd_test(NAME SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT seconds]): a GoogleTest program whose cases ctest discovers.
function(lpsgd_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  lpsgd_emulate(${ARG_SOURCES})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main lpsgd_options)
  if(ARG_LABELS STREQUAL "gpu")  # it may call CUDA itself
    target_link_libraries(${name} PRIVATE CUDA::cudart_static)
  endif()
  lpsgd_compile_as_test(${name})
  target_precompile_headers(${name} REUSE_FROM lpsgd_test_headers)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# lpsgd_mpi_test(NAME SOURCES ... DEPENDS ... RANKS 1 2 3 5): one program run under mpirun once per rank count.
# The program's main is tests/mpi_main.cc: every rank runs the same cases, and a failure on any rank fails the run.
function(lpsgd_mpi_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;RANKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/mpi_main.cc)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gmock MPI::MPI_C lpsgd_options)
  lpsgd_compile_as_test(${name})
  foreach(ranks IN LISTS ARG_RANKS)
    add_test(NAME ${name}.n${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}.n${ranks} PROPERTIES LABELS mpi TIMEOUT 300 PROCESSORS 2
      ENVIRONMENT "OMP_NUM_THREADS=1;${LPSGD_MPI_TEST_ENVIRONMENT}")
  endforeach()
endfunction()
