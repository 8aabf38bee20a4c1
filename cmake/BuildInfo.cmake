# Writes lpsgd_build.h; run at build time so that the git hash is the one that is built. A file that would not
# change is left alone.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT hash)
  set(hash unknown)
endif()
set(text "// Generated: what was built, and how.\n#pragma once\n\nnamespace lpsgd::build {\n
inline constexpr char version[] = \"${VERSION}\";
inline constexpr char git_hash[] = \"${hash}\";
inline constexpr char type[] = \"${TYPE}\";
inline constexpr char compiler[] = \"${COMPILER}\";
inline constexpr char cmake[] = \"${CMAKE_VERSION}\";
inline constexpr char flags[] = \"${FLAGS}\";
inline constexpr char cuda[] = \"${CUDA}\";
inline constexpr char cuda_architectures[] = \"${ARCHITECTURES}\";
\n}  // namespace lpsgd::build\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
