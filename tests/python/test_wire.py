import pytest

import lossd
from lossd import wire


def types():
    return lossd.load().schema.types


def test_numbers_survive_the_way_there_and_back():
    message = {
        "request_id": "é", "completion": 1, "done_event": (1 << 32) - 1, "workspace_limit": (1 << 64) - 1,
        "gradient_filter": -1.5e-300, "batch_invariant": True, "donate": ["a", "b"],
        "ops": [{"linear_logprob": {"head": {"ignore_index": -(1 << 63), "temperature": 0.1},
                                    "linear": {"hidden": {"dtype": 1, "shape": [0, 1 << 40],
                                                          "inline_data": b"\0\xff"}}}}],
    }
    kind = types()["lossd.v1.RunRequest"]
    assert kind.decode(kind.encode(message)) == message


def test_bytes_are_those_of_the_protobuf_documentation():
    kind = types()["lossd.v1.ReadyPoint"]
    assert kind.encode({"event": 150}) == bytes.fromhex("089601")
    tensor = types()["lossd.v1.Tensor"]
    assert tensor.encode({"shape": [3, 270]}) == bytes.fromhex("100310" "8e02")
    # Packed and unpacked mean the same.
    assert tensor.decode(bytes.fromhex("1203038e02")) == {"shape": [3, 270]}
    metric = types()["lossd.v1.Metric"]
    assert metric.encode({"count": -1}) == bytes.fromhex("10" + "ff" * 9 + "01")


def test_maps_and_unknown_fields_are_read():
    kind = types()["lossd.v1.OpReply"]
    message = {"metrics": {"kl": {"sum": 1.0, "count": 2}, "": {"count": 1}}, "sum": 0.5}
    data = kind.encode(message)
    assert kind.decode(data) == message
    assert kind.decode(data + bytes.fromhex("ba3e03616263")) == message  # field 999


def test_a_cut_message_and_an_unknown_name_are_refused():
    kind = types()["lossd.v1.RunRequest"]
    data = kind.encode({"request_id": "abc"})
    with pytest.raises((ValueError, IndexError)):
        kind.decode(data[:-1])
    with pytest.raises(KeyError, match="request_ident"):
        kind.encode({"request_ident": "abc"})


def test_agrees_with_the_protobuf_package():
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    data = lossd.load().fetch("lossd_descriptors")
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName("lossd.v1.RunRequest")
    make = getattr(message_factory, "GetMessageClass", None) or \
        message_factory.MessageFactory(pool).GetPrototype
    theirs = make(descriptor)()
    op = theirs.ops.add().linear_cross_entropy
    op.linear.hidden.dtype = 2
    op.linear.hidden.shape.extend([4, 5])
    op.linear.hidden.region.byte_offset = 1 << 45
    op.label_smoothing = 0.1
    op.reduction = 3
    theirs.batch_invariant = False
    ours = types()["lossd.v1.RunRequest"]
    assert theirs.FromString(ours.encode(ours.decode(theirs.SerializeToString()))) == theirs


def test_enum_names_lose_their_prefix():
    kind = lossd.load().schema.ops["linear_policy_loss"].fields["kl_estimator"].field.type
    assert isinstance(kind, wire.EnumType)
    assert kind.meaningful() == ["NONE", "K1", "K2", "K3", "ABS"]
    assert kind.numbers["K3"] == kind.numbers["KL_ESTIMATOR_K3"] == 4
