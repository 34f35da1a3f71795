# libtorch for src/train, from the folder that tools/fetch-libtorch fills (or MUSTER_LIBTORCH).
#
#   muster::torch            imported target: include path, libtorch_cpu, libc10, run path
#   muster_torch(TARGET...)  links it privately and shares one precompiled train/tensor.h among the targets, another with
#                            gmock among the tests
#
# Its own find_package(Torch) is not used: for this wheel it wants a CUDA toolkit.
include_guard(GLOBAL)

set(MUSTER_LIBTORCH "$ENV{MUSTER_LIBTORCH}" CACHE PATH "A libtorch >= 2.11 in place of the fetched one")
set(torch_dir "${MUSTER_LIBTORCH}")
if(NOT torch_dir)
  execute_process(COMMAND ${CMAKE_SOURCE_DIR}/tools/fetch-libtorch --print-dir
                  OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS ${torch_dir}/lib/libtorch_cpu.so OR NOT EXISTS ${torch_dir}/include/ATen/ATen.h)
  message(FATAL_ERROR "libtorch is not in ${torch_dir}.\n"
    "Run  tools/fetch-libtorch  (553 MB, once), or set MUSTER_LIBTORCH to a folder with lib/ and include/ of "
    "libtorch 2.11 or newer, or configure with -DMUSTER_TRAIN=OFF to build everything but muster-train.")
endif()

add_library(muster_torch_libraries INTERFACE)
add_library(muster::torch ALIAS muster_torch_libraries)
target_include_directories(muster_torch_libraries SYSTEM INTERFACE
  ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
# The wheel is built with the new ABI of std::string (since torch 2.6). USE_C10D_GLOO opens the declarations of
# c10d::ProcessGroupGloo; the gloo headers they need are Debian's libgloo-dev, the code is in libtorch_cpu.
target_compile_definitions(muster_torch_libraries INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D_GLOO)
# The OpenMP runtime that libtorch itself loads: a second one in the process would double the thread pools.
file(GLOB torch_gomp ${torch_dir}/lib/libgomp*.so*)
if(torch_gomp)
  list(GET torch_gomp 0 torch_gomp)
else()
  set(torch_gomp gomp)
endif()
# libtorch_cpu finds its own neighbours through its $ORIGIN.
target_link_libraries(muster_torch_libraries INTERFACE
  ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so ${torch_gomp})
target_link_options(muster_torch_libraries INTERFACE LINKER:-rpath,${torch_dir}/lib)

# One precompiled header for all: 7 s once, then 1.4 s a file in place of 6.5 s.
add_library(muster_train_pch OBJECT ${CMAKE_SOURCE_DIR}/src/train/tensor_pch.cc)
target_include_directories(muster_train_pch PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(muster_train_pch PRIVATE muster::torch Threads::Threads)
target_compile_options(muster_train_pch PRIVATE -fopenmp -fPIC)
target_precompile_headers(muster_train_pch PRIVATE ${CMAKE_SOURCE_DIR}/src/train/tensor.h)

if(MUSTER_TESTS)
  muster_test_pch(muster_train_test_pch ${CMAKE_SOURCE_DIR}/src/train/tensor.h)
  target_include_directories(muster_train_test_pch PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(muster_train_test_pch PRIVATE muster::torch)
  target_compile_options(muster_train_test_pch PRIVATE -fopenmp)
endif()

function(muster_torch)
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target}) # a test, in a build without tests
      continue()
    endif()
    target_link_libraries(${target} PRIVATE muster::torch)
    # at::parallel_for is a template: without this it runs on one thread.
    # -fPIC, also for executables (CMake gives them -fPIE): the precompiled header takes only one of the two.
    target_compile_options(${target} PRIVATE -fopenmp -fPIC)
    if(target MATCHES "_test$")
      target_precompile_headers(${target} REUSE_FROM muster_train_test_pch)
    else()
      target_precompile_headers(${target} REUSE_FROM muster_train_pch)
    endif()
  endforeach()
endfunction()
