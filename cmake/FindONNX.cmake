# Finds the messages of ONNX's files and gives the imported target ONNX::Proto.
find_path(ONNX_INCLUDE_DIR onnx/onnx_pb.h)
find_library(ONNX_PROTO_LIBRARY onnx_proto)
find_package(Protobuf QUIET)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONNX REQUIRED_VARS ONNX_PROTO_LIBRARY ONNX_INCLUDE_DIR Protobuf_LIBRARY)
if(ONNX_FOUND AND NOT TARGET ONNX::Proto)
  add_library(ONNX::Proto UNKNOWN IMPORTED)
  set_target_properties(ONNX::Proto PROPERTIES
    IMPORTED_LOCATION ${ONNX_PROTO_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ONNX_INCLUDE_DIR}
    INTERFACE_COMPILE_DEFINITIONS "ONNX_ML=1;ONNX_NAMESPACE=onnx" INTERFACE_LINK_LIBRARIES protobuf::libprotobuf)
endif()
