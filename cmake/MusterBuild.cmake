# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# NDEBUG: toml++ 3.3 aborts by assert() on some malformed input unless it is defined. Our own
# MUSTER_ASSERT does not look at it.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEV "-O1 -g1 -DNDEBUG")

# Designated initialisers leave members at their defaults on purpose.
add_compile_options(-Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  if(CMAKE_UNITY_BUILD)
    add_compile_options(-Wno-subobject-linkage)  # takes a .cc that is included by the unit for a header
  endif()
  # gcc 12 reports these inside inlined library code (bugs 105329, 105562, 107138).
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized -Wno-dangling-pointer -Wno-stringop-overflow
                      -Wno-array-bounds)
endif()

set(MUSTER_SANITIZE "" CACHE STRING "Comma-separated sanitizers, e.g. address,undefined or thread")
if(MUSTER_SANITIZE)
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
endif()

find_program(MUSTER_CCACHE ccache)
if(MUSTER_CCACHE)
  # base_dir and no hash_dir: a clone in another folder hits the same cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${MUSTER_CCACHE})
endif()
find_program(MUSTER_MOLD mold)
if(MUSTER_MOLD)
  # Segments on pages of their own: mold 1.10 lets the read-only part begin in the gap before its segment when a
  # thread-local byte comes to lie there, and the loader then refuses the program.
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()
