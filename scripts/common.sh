# Sourced by the other scripts: changes to the repository's root and defines common functions.
# shellcheck shell=bash
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$script")" "$*" >&2; exit 1; }

# The comment at the head of the script is its help.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$script"; }

# Debian's own Python: another one earlier on PATH may lack Debian's numpy.
# shellcheck disable=SC2034
python=/usr/bin/python3

# The CUDA compiler, if there is one: CUDACXX, PATH, then the toolkit's usual place. Prints nothing otherwise.
find_nvcc() {
  command -v "${CUDACXX:-nvcc}" || command -v /usr/local/cuda/bin/nvcc || true
}

# The mpirun of a build folder's MPI library, by the shortest name that finds it.
mpirun_of() {
  local own plain
  own=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$1/CMakeCache.txt")
  plain=$(command -v mpirun || true)
  if [ "$(realpath -q "$plain")" = "$(realpath -q "$own")" ]; then say mpirun; else say "$own"; fi
}

# The folders that hold source, and the C++ and CUDA files in them.
source_folders() {
  local folder
  for folder in core quant comm nn data trainer python tests bench; do
    if [ -d "$folder" ]; then say "$folder"; fi
  done
}
source_files() {
  local folders
  mapfile -t folders < <(source_folders)
  find "${folders[@]}" -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.c' \) | sort
}
