# Reads OTLP profiles by the messages that OpenTelemetry itself makes for Python
# (opentelemetry-proto of PyPI), and prints a line of JSON for each sample.
#
#     python read_otlp.py FILE
import json
import sys

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

request = profiles_service_pb2.ExportProfilesServiceRequest()
request.ParseFromString(open(sys.argv[1], "rb").read())
d = request.dictionary
strings = d.string_table


def unknown(message, path=""):
    """Fields that the official messages do not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    assert not len(UnknownFieldSet(message)), path
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in value if field.is_repeated else [value]:
            unknown(one, path + "." + field.name)


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(indices):
    all = {strings[d.attribute_table[i].key_strindex]: value(d.attribute_table[i].value)
           for i in indices}
    assert len(all) == len(indices) and 0 not in indices
    return all


def lines(index):
    location = d.location_table[index]
    names = [strings[d.function_table[line.function_index].name_strindex]
             for line in location.lines]
    assert names and all(names)
    return names


unknown(request)
assert strings[0] == "" and len(set(strings)) == len(strings)
for resource in request.resource_profiles:
    known = {one.key: value(one.value) for one in resource.resource.attributes}
    for scope in resource.scope_profiles:
        assert scope.scope.name == "aiprof" and scope.scope.version
        for profile in scope.profiles:
            kind = strings[profile.sample_type.type_strindex]
            for sample in profile.samples:
                [number] = sample.values
                leaf_first = [name for at in d.stack_table[sample.stack_index].location_indices
                              for name in lines(at)]
                print(json.dumps({
                    "kind": kind, "value": number, "period": profile.period,
                    "service": known["service.name"], "host": known["host.name"],
                    "frames": leaf_first[::-1],
                    "attributes": attributes(sample.attribute_indices),
                }))
