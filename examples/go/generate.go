//go:build ignore

// Generates the package serving from the descriptors of TensorFlow Serving's protos that the server ships. It calls the
// generators as protoc would, and puts all protos into one Go package, because TensorFlow Serving's name none.
package main

import (
	"bytes"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	data := must(os.ReadFile(os.Args[1]))
	var protos descriptorpb.FileDescriptorSet
	check(proto.Unmarshal(data, &protos))
	request := &pluginpb.CodeGeneratorRequest{ProtoFile: protos.File, Parameter: proto.String("module=lookup")}
	for _, file := range protos.File {
		if !strings.HasPrefix(file.GetName(), "google/") {
			file.Options = &descriptorpb.FileOptions{GoPackage: proto.String("lookup/serving")}
			request.FileToGenerate = append(request.FileToGenerate, file.GetName())
		}
		// The descriptors are in the order of imports, so all that PredictionService needs has come.
		if file.GetName() == "tensorflow_serving/apis/prediction_service.proto" {
			break
		}
	}
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		command := exec.Command("go", "tool", generator)
		command.Stdin = bytes.NewReader(must(proto.Marshal(request)))
		command.Stderr = os.Stderr
		var response pluginpb.CodeGeneratorResponse
		check(proto.Unmarshal(must(command.Output()), &response))
		if response.Error != nil {
			log.Fatal(*response.Error)
		}
		for _, file := range response.File {
			check(os.MkdirAll(filepath.Dir(file.GetName()), 0o755))
			check(os.WriteFile(file.GetName(), []byte(file.GetContent()), 0o644))
		}
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
