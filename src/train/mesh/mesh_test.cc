#include "train/mesh/mesh.h"

#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(Mesh, TakesTheWholeWorldAsReplicas) {
  const auto mesh = Mesh::create(3);
  ASSERT_TRUE(mesh);
  EXPECT_EQ(mesh->extent(Axis::replica), 3);
  EXPECT_EQ(mesh->world(), 3);
  EXPECT_EQ(mesh->batch_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(mesh->batch_index(rank), rank);
    EXPECT_EQ(mesh->group(Axis::replica, rank), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(mesh->group(Axis::tp, rank), (std::vector<int>{rank}));
  }
}

TEST(Mesh, TensorParallelRanksAreNeighbours) {
  const auto mesh = Mesh::create(6, {.tp = 2});
  ASSERT_TRUE(mesh);
  EXPECT_EQ(mesh->batch_size(), 3);
  EXPECT_EQ(mesh->group(Axis::tp, 3), (std::vector<int>{2, 3}));
  EXPECT_EQ(mesh->group(Axis::replica, 3), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(mesh->batch_index(3), 1);
  EXPECT_EQ(mesh->coordinate(Axis::tp, 3), 1);
}

TEST(Mesh, StagesAreFarthestApartAndShardsNearTheTensorParallelRanks) {
  const auto mesh = Mesh::create(24, {.pp = 2, .shard = 3, .tp = 2});
  ASSERT_TRUE(mesh);
  EXPECT_EQ(mesh->extent(Axis::replica), 2);
  EXPECT_EQ(mesh->group(Axis::pp, 5), (std::vector<int>{5, 17}));
  EXPECT_EQ(mesh->group(Axis::replica, 5), (std::vector<int>{5, 11}));
  EXPECT_EQ(mesh->group(Axis::shard, 5), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(mesh->batch_index(17), 2);
}

TEST(Mesh, ShardGroupsTileNodes) {
  const auto mesh = Mesh::create(24, {.shard = 6, .tp = 2});
  ASSERT_TRUE(mesh);
  EXPECT_EQ(*mesh->shards_on_node(12), 6);  // a group on one node
  EXPECT_EQ(*mesh->shards_on_node(24), 6);
  EXPECT_EQ(*mesh->shards_on_node(4), 2);  // three nodes
  EXPECT_EQ(*mesh->shards_on_node(2), 1);
  for (const int ranks : {3, 8, 5}) {
    ASSERT_FALSE(mesh->shards_on_node(ranks)) << ranks;
    EXPECT_NE(mesh->shards_on_node(ranks).error().message.find("6 x 2 ranks do not tile nodes of"),
              std::string::npos);
  }
}

TEST(Mesh, RefusesWhatItCannotDo) {
  struct Case {
    int world;
    MeshShape shape;
    ErrorCode code;
    const char* says;
  };
  const Case cases[] = {
      {0, {}, ErrorCode::invalid_argument, "a world of 0 ranks"},
      {6,
       {.pp = 4},
       ErrorCode::invalid_argument,
       "or mesh.pp x mesh.shard x mesh.tp a divisor of them: 1, 2, 3, 6"},
      {12, {.pp = 2, .replica = 4, .shard = 2}, ErrorCode::invalid_argument, "mesh.replica = 3 would fit"},
      {2, {.tp = 4}, ErrorCode::invalid_argument, "mesh.tp = 4: there are 2 ranks; possible are 1, 2"},
      {2, {.pp = 2, .shard = 2}, ErrorCode::invalid_argument, "one replica has 4 places, the world 2 ranks"},
      {1'000'000,
       {.pp = 1'000'000, .replica = 1'000'000, .shard = 1'000'000, .tp = 1'000'000},
       ErrorCode::invalid_argument,
       "one replica has 1000000000000000000 places, the world 1000000 ranks"},
      {5, {.tp = 2}, ErrorCode::invalid_argument, "the mesh has 4 places, the world 5 ranks"},
      {4, {.tp = 0}, ErrorCode::invalid_argument, "mesh.tp = 0"},
      {4, {.replica = -1}, ErrorCode::invalid_argument, "mesh.replica = -1"},
      {4, {.replica = 3}, ErrorCode::invalid_argument, "the mesh has 3 places, the world 4 ranks"},
  };
  for (const Case& c : cases) {
    const auto mesh = Mesh::create(c.world, c.shape);
    ASSERT_FALSE(mesh) << c.says;
    EXPECT_EQ(mesh.error().code, c.code) << c.says;
    EXPECT_NE(mesh.error().message.find(c.says), std::string::npos) << mesh.error().message;
  }
}

}  // namespace
}  // namespace muster::train
