// libjpeg-turbo's headers, in the order that they need: jpeglib.h uses <cstdio>, and jerror.h takes the
// message numbers of the library's version from jpeglib.h.
#pragma once

// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
