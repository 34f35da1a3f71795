// Owns the precompiled header of src/train (cmake/Torch.cmake); there is no code here.
#include "train/tensor.h"
