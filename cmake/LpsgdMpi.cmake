# Finds MPI, and the mpirun that belongs to it. LPSGD_MPI says which; so do CMake's own MPI_C_COMPILER and MPI_HOME.
# Debian installs several libraries side by side as mpicc.mpich, mpicc.openmpi, ...; its plain mpicc and mpirun are those
# of whichever has the highest priority, so the full names are tried first.
set(LPSGD_MPI AUTO CACHE STRING "MPI library: AUTO (MPICH where it is installed), MPICH, OPENMPI, or the path of an mpicc")
set_property(CACHE LPSGD_MPI PROPERTY STRINGS AUTO MPICH OPENMPI)

# What was found for another choice does not hold for this one.
if(FIND_PACKAGE_MESSAGE_DETAILS_MPI AND NOT "${LPSGD_MPI_FOUND_FOR}" STREQUAL LPSGD_MPI)
  get_cmake_property(_cached CACHE_VARIABLES)
  list(FILTER _cached INCLUDE REGEX "^_?MPI|^LPSGD_MPICC$|DETAILS_MPI")
  foreach(_variable IN LISTS _cached)
    unset(${_variable} CACHE)
  endforeach()
endif()
set(LPSGD_MPI_FOUND_FOR "${LPSGD_MPI}" CACHE INTERNAL "")

if(LPSGD_MPI STREQUAL "MPICH")
  find_program(LPSGD_MPICC NAMES mpicc.mpich mpicc)
elseif(LPSGD_MPI STREQUAL "OPENMPI")
  find_program(LPSGD_MPICC NAMES mpicc.openmpi mpicc)
elseif(NOT LPSGD_MPI STREQUAL "AUTO")
  find_program(LPSGD_MPICC NAMES ${LPSGD_MPI})
elseif(NOT MPI_C_COMPILER AND NOT MPI_HOME AND NOT DEFINED ENV{MPI_HOME})
  find_program(LPSGD_MPICC NAMES mpicc.mpich)
endif()
mark_as_advanced(LPSGD_MPICC)
if(LPSGD_MPICC)
  set(MPI_C_COMPILER ${LPSGD_MPICC} CACHE FILEPATH "MPI's compiler wrapper for C")
elseif(NOT LPSGD_MPI STREQUAL "AUTO")
  message(FATAL_ERROR "LPSGD_MPI=${LPSGD_MPI}: its mpicc was not found; scripts/install-packages installs MPICH, and "
    "with '--with openmpi' Open MPI")
endif()
if(MPI_C_COMPILER)
  get_filename_component(_bin "${MPI_C_COMPILER}" DIRECTORY)
  get_filename_component(_suffix "${MPI_C_COMPILER}" NAME)
  string(REGEX REPLACE "^mpi[a-z]+" "" _suffix "${_suffix}")
  find_program(MPIEXEC_EXECUTABLE NAMES mpirun${_suffix} mpiexec${_suffix} PATHS ${_bin} NO_DEFAULT_PATH)
  if(NOT MPIEXEC_EXECUTABLE)
    message(FATAL_ERROR "No mpirun${_suffix} beside ${MPI_C_COMPILER}; -DMPIEXEC_EXECUTABLE=/path/to/mpirun gives that of the library")
  endif()
endif()

set(MPI_DETERMINE_LIBRARY_VERSION ON)
find_package(MPI REQUIRED COMPONENTS C)
string(REGEX REPLACE "( Version:)?[\t ]+" " " LPSGD_MPI_VERSION "${MPI_C_LIBRARY_VERSION_STRING}")
string(REGEX REPLACE "[,\n].*" "" LPSGD_MPI_VERSION "${LPSGD_MPI_VERSION}")
message(STATUS "lpsgd: MPI ${LPSGD_MPI_VERSION}, started by ${MPIEXEC_EXECUTABLE}")
if((LPSGD_MPI STREQUAL "OPENMPI" AND NOT LPSGD_MPI_VERSION MATCHES "^Open MPI") OR
   (LPSGD_MPI STREQUAL "MPICH" AND NOT LPSGD_MPI_VERSION MATCHES "MPICH"))
  message(FATAL_ERROR "LPSGD_MPI=${LPSGD_MPI}, but ${MPI_C_COMPILER} is that of '${LPSGD_MPI_VERSION}'; give the path of "
    "the right mpicc: -DLPSGD_MPI=/path/to/mpicc")
endif()
# The C++ bindings that some mpi.h still declare need a library of their own.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

# Environment of the tests that start ranks. Open MPI refuses root and more ranks than cores unless it is told otherwise,
# binds ranks to cores, and adds a message of its own where a rank's status is not 0.
# (GOMP_SPINCOUNT: a program that has to set it itself starts twice, a sixth of a short run.)
set(LPSGD_MPI_TEST_ENVIRONMENT GOMP_SPINCOUNT=100 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_orte_execute_quiet=1)
if(LPSGD_SANITIZE)  # hwloc's plugins, which come with Open MPI, leak when they are unloaded
  list(APPEND LPSGD_MPI_TEST_ENVIRONMENT HWLOC_COMPONENTS=-pci,-opencl,-gl)
endif()
