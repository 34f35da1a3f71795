// Owns the precompiled headers of the tests (cmake/MusterLibrary.cmake); there is no code here.
