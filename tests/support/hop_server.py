"""A real dm_env_rpc server: hop along a line of cells, each world with its own settings and seed."""

import contextlib
from concurrent import futures

import grpc
import numpy as np
from dm_env import specs
from dm_env_rpc.v1 import dm_env_rpc_pb2, dm_env_rpc_pb2_grpc, dm_env_utils, spec_manager, tensor_utils
from google.rpc import code_pb2, status_pb2

KNOWN = {"size", "seed", "ends", "discount", "odd"}
PIXELS = (2, 3, 3)


class HopError(Exception):
    """What the server answers as an error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class HopWorld:
    """One world: start anywhere but at the last cell; move by -1, 0 or 1; the last cell ends it with reward 1."""

    def __init__(self, settings):
        if unknown := sorted(settings.keys() - KNOWN):
            raise HopError(code_pb2.INVALID_ARGUMENT, f"unknown settings: {unknown}")
        self.size = int(settings.get("size", 4))
        self.ends = getattr(dm_env_rpc_pb2.EnvironmentStateType, settings.get("ends", "TERMINATED"))
        self.generator = np.random.default_rng(settings.get("seed"))
        observed = [
            specs.Array((self.size,), np.float32, "cells"),
            specs.DiscreteArray(self.size, np.int32, "place"),
            specs.BoundedArray(PIXELS, np.uint8, 0, 255, "pixels"),
            specs.Array((), np.bool_, "at_start"),
            specs.StringArray((), name="note"),
            specs.Array((), np.float32, "reward"),
        ]
        if settings.get("discount"):
            observed.append(specs.BoundedArray((), np.float32, 0, 1, "discount"))
        if settings.get("odd"):
            observed.append(specs.Array((-1,), np.float32, "varying"))
        acted = [
            specs.BoundedArray((), np.int32, -1, 1, "move"),
            specs.BoundedArray((2,), np.float32, -1, 1, "push"),
            specs.BoundedArray((2,), np.int8, 0, [1, 2], "buttons"),
        ]
        self.specs = dm_env_rpc_pb2.ActionObservationSpecs(
            actions=dict(enumerate(map(dm_env_utils.dm_env_spec_to_tensor_spec, acted), 1)),
            observations=dict(enumerate(map(dm_env_utils.dm_env_spec_to_tensor_spec, observed), 1)),
        )
        self.actions = spec_manager.SpecManager(self.specs.actions)
        self.observations = spec_manager.SpecManager(self.specs.observations)
        self.state = dm_env_rpc_pb2.EnvironmentStateType.INTERRUPTED
        self.received = []

    def step(self, request):
        running = dm_env_rpc_pb2.EnvironmentStateType.RUNNING
        reward = 0.0
        if self.state != running:
            self.state, self.place, self.start = running, int(self.generator.integers(self.size - 1)), True
        else:
            action = self.actions.unpack(request.actions)
            self.received.append(action)
            self.place, self.start = max(self.place + int(action["move"]), 0), False
            if self.place == self.size - 1:
                self.state, reward = self.ends, 1.0
        values = {
            "cells": np.eye(self.size, dtype=np.float32)[self.place],
            "place": np.int32(self.place),
            "pixels": np.full(PIXELS, self.place % 256, np.uint8),
            "at_start": np.bool_(self.start),
            "note": f"cell {self.place} ♥",
            "reward": np.float32(reward),
            "discount": np.float32(0.0 if self.state != running else 1.0),
        }
        names = [self.observations.uid_to_name(uid) for uid in request.requested_observations]
        packed = self.observations.pack({name: values[name] for name in names})
        return dm_env_rpc_pb2.StepResponse(state=self.state, observations=packed)


class HopServicer(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """All worlds of the server, shared by its connections."""

    def __init__(self):
        self.worlds = {}
        self.num_made = 0
        self.calls = []  # open streams

    def Process(self, request_iterator, context):
        joined = None
        self.calls.append(context)
        for request in request_iterator:
            name = request.WhichOneof("payload")
            asked = getattr(request, name)
            response = dm_env_rpc_pb2.EnvironmentResponse()
            try:
                if name == "create_world":
                    settings = {key: tensor_utils.unpack_tensor(value) for key, value in asked.settings.items()}
                    world = f"world_{self.num_made}"
                    self.num_made += 1
                    self.worlds[world] = HopWorld(settings)
                    response.create_world.world_name = world
                elif name == "join_world":
                    if asked.world_name not in self.worlds:
                        raise HopError(code_pb2.NOT_FOUND, f"no world {asked.world_name}")
                    joined = self.worlds[asked.world_name]
                    response.join_world.specs.CopyFrom(joined.specs)
                elif name == "reset":
                    joined.state = dm_env_rpc_pb2.EnvironmentStateType.INTERRUPTED
                    response.reset.specs.CopyFrom(joined.specs)
                elif name == "step":
                    response.step.CopyFrom(joined.step(asked))
                elif name == "leave_world":
                    joined = None
                    response.leave_world.SetInParent()
                else:
                    del self.worlds[asked.world_name]
                    response.destroy_world.SetInParent()
            except HopError as error:
                response = dm_env_rpc_pb2.EnvironmentResponse(
                    error=status_pb2.Status(code=error.code, message=str(error))
                )
            yield response


@contextlib.contextmanager
def hop_server():
    """The servicer and its address on loopback, for as long as it runs."""
    servicer = HopServicer()
    pool = futures.ThreadPoolExecutor(16)
    server = grpc.server(pool)
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        pool.shutdown()
