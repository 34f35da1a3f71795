// MUSTER_CLONES before a function: one body, compiled for each of these instruction sets and chosen when the
// program is loaded; x86-64-v4 has AVX-512, v3 AVX2 and FMA. Sanitizers start too late for that, other
// architectures have no such levels: there it is empty, and the build's own flags hold.
//
// What such a function calls is compiled for them too only if it is inlined: gnu::always_inline.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define MUSTER_CLONES
#else
#define MUSTER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
