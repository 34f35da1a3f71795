# muster_library(FOLDER
#   [SRCS a.cc ...]            sources, relative to the calling CMakeLists.txt
#   [DEPS base net ...]        other muster folders; checked against cmake/layers.txt
#   [LIBS fmt::fmt ...]        outside libraries, visible to users of the headers
#   [PRIVATE_LIBS ...]         outside libraries that stop at the .cc
#   [TESTS a_test.cc ...]      gtest files: one executable <name>_test
#   [TEST_DEPS ...]            muster folders that only the tests see (any)
#   [TEST_WHOLE]               one ctest entry for the whole executable instead of one a test case
#   [TEST_SERIAL])             nothing else runs beside these tests: they watch how soon something is noticed
# FOLDER is the path below src/, e.g. data/s3; the target is muster_data_s3.
#
# muster_program(NAME SRCS main.cc DEPS ... [LIBS ...] [QUICK_START]) makes bin/NAME and adds it to the target
# `programs`. QUICK_START: for one that starts often. What it uses of the outside libraries named by
# muster_outside_library() is linked in, so that the loader has little to do (docs/adr/0036-quick-starts.md).
# muster_test(NAME SRCS ... DEPS ... [LIBS ...] [WHOLE] [SERIAL]) makes a gtest executable outside src/.
# All tests share one precompiled gtest and gmock: 3 s a file otherwise.

file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/layers.txt MUSTER_LAYER_LINES REGEX "^[a-z]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/layers.txt)
add_custom_target(programs)

# The folders that FOLDER may see, in OUT: the line of its longest prefix in the table.
function(muster_allowed_layers folder out)
  set(best "")
  set(best_length -1)
  foreach(line IN LISTS MUSTER_LAYER_LINES)
    string(REGEX REPLACE "[ \t]+" ";" words "${line}")
    list(POP_FRONT words name)
    string(LENGTH "${name}" length)
    if(("${folder}/" MATCHES "^${name}/") AND length GREATER best_length)
      set(best "${name};${words}")
      set(best_length ${length})
    endif()
  endforeach()
  if(best_length EQUAL -1)
    message(FATAL_ERROR "src/${folder} has no line in cmake/layers.txt: add one")
  endif()
  set(${out} "${best}" PARENT_SCOPE)
endfunction()

function(muster_target_name folder out)
  string(REPLACE "/" "_" name "${folder}")
  set(${out} "muster_${name}" PARENT_SCOPE)
endfunction()

function(muster_link target visibility)
  foreach(dep IN LISTS ARGN)
    muster_target_name(${dep} name)
    target_link_libraries(${target} ${visibility} ${name})
  endforeach()
endfunction()

function(muster_library folder)
  cmake_parse_arguments(ARG "TEST_WHOLE;TEST_SERIAL" "" "SRCS;DEPS;LIBS;PRIVATE_LIBS;TESTS;TEST_DEPS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "muster_library(${folder}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  muster_allowed_layers(${folder} allowed)
  string(REGEX REPLACE "/.*" "" own "${folder}")
  foreach(dep IN LISTS ARG_DEPS)
    string(REGEX REPLACE "/.*" "" top "${dep}")
    if(NOT top STREQUAL own AND NOT top IN_LIST allowed)
      message(FATAL_ERROR "src/${folder} may not depend on ${dep}: it sees only ${allowed} (cmake/layers.txt)")
    endif()
  endforeach()
  muster_target_name(${folder} name)
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    set(visibility PUBLIC)
    target_link_libraries(${name} PRIVATE ${ARG_PRIVATE_LIBS})
  else()
    add_library(${name} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(${name} ${visibility} ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} ${visibility} ${ARG_LIBS} Threads::Threads)
  muster_link(${name} ${visibility} ${ARG_DEPS})
  if(MUSTER_TESTS AND ARG_TESTS)
    set(whole)
    if(ARG_TEST_WHOLE)
      set(whole WHOLE)
    endif()
    if(ARG_TEST_SERIAL)
      list(APPEND whole SERIAL)
    endif()
    string(REPLACE "muster_" "" short ${name})
    muster_test(${short}_test SRCS ${ARG_TESTS} DEPS ${folder} ${ARG_TEST_DEPS} LIBS ${ARG_PRIVATE_LIBS} ${whole})
  endif()
endfunction()

# An outside library in OUT: the shared one of TARGET, for programs with QUICK_START lib<NAME>.a if it is there.
function(muster_outside_library out target name)
  find_library(MUSTER_STATIC_${name} lib${name}.a)
  set(library ${target})
  if(MUSTER_STATIC_${name})
    set(library "$<IF:$<BOOL:$<TARGET_PROPERTY:QUICK_START>>,${MUSTER_STATIC_${name}},${target}>")
  endif()
  set(${out} ${library} PARENT_SCOPE)
endfunction()

function(muster_program name)
  cmake_parse_arguments(ARG "QUICK_START" "" "SRCS;DEPS;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  if(ARG_QUICK_START AND NOT MUSTER_SANITIZE)
    set_target_properties(${name} PROPERTIES QUICK_START ON)
    # Sections that nothing calls go: with them the libraries that only they would need.
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc LINKER:--gc-sections)
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  muster_link(${name} PRIVATE ${ARG_DEPS})
  add_dependencies(programs ${name})
endfunction()

# Of all tests, because a precompiled header takes only the flags it was made with: -fPIC in place of CMake's -fPIE for
# executables, -pthread since some libraries ask for it. -O1: what is tested is in the libraries.
set(MUSTER_TEST_OPTIONS -O1 -fPIC -pthread)

# Makes the owner of a precompiled header of tests: gmock, and the headers that follow.
function(muster_test_pch name)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/tests/pch.cc)
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gmock Threads::Threads)
  target_compile_options(${name} PRIVATE ${MUSTER_TEST_OPTIONS})
  target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> ${ARGN})
endfunction()

include(GoogleTest)
function(muster_test name)
  cmake_parse_arguments(ARG "WHOLE;SERIAL" "" "SRCS;DEPS;LIBS" ${ARGN})
  if(NOT MUSTER_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SRCS})
  if(NOT TARGET muster_test_pch)
    muster_test_pch(muster_test_pch)
  endif()
  target_compile_options(${name} PRIVATE ${MUSTER_TEST_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM muster_test_pch)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE MUSTER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main Threads::Threads)
  muster_link(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] 1 test, listed below:.*\\[  PASSED  \\] 0 tests")
  else()
    gtest_discover_tests(${name} TEST_PREFIX "${name}/" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT 900 RUN_SERIAL ${ARG_SERIAL})
  endif()
endfunction()
