// Command lookup requests embeddings over gRPC, with stubs that are generated from TensorFlow Serving's protos.
//
//	go generate && go run . 127.0.0.1:8500 movielens
package main

//go:generate go run generate.go ../../service/artifact/serving_protos.pb

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lookup/serving"
)

func main() {
	server, model := "127.0.0.1:8500", "movielens"
	if len(os.Args) > 2 {
		server, model = os.Args[1], os.Args[2]
	}
	if err := lookup(server, model); err != nil {
		fault := status.Convert(err) // an error of the server or of the connection; docs/errors.md lists the codes
		fmt.Fprintf(os.Stderr, "%s: %s\n", fault.Code(), fault.Message())
		os.Exit(1)
	}
}

func lookup(server, model string) error {
	connection, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The server writes the numbers of the answer as bytes, which are faster to read than a list.
	ctx = metadata.AppendToOutgoingContext(ctx, "x-tensor-encoding", "content")
	answer, err := serving.NewPredictionServiceClient(connection).Predict(ctx, &serving.PredictRequest{
		ModelSpec: &serving.ModelSpec{Name: model, SignatureName: "lookup"},
		Inputs: map[string]*serving.TensorProto{
			"user_id": int64s(1, 2),
			// Ragged ids: the first row has both genres, the second none.
			"genres__values":     texts("Comedy", "Drama"),
			"genres__row_splits": int64s(0, 2, 2),
		},
	})
	if err != nil {
		return err
	}
	users, err := matrix(answer.Outputs["user_id"])
	if err != nil {
		return err
	}
	genres, err := matrix(answer.Outputs["genres"])
	if err != nil {
		return err
	}
	version := answer.ModelSpec.GetVersion().GetValue()
	fmt.Printf("version %d: %d users of %d numbers, genres %v\n", version, len(users), len(users[0]), genres)
	return nil
}

func int64s(values ...int64) *serving.TensorProto {
	return &serving.TensorProto{Dtype: serving.DataType_DT_INT64, TensorShape: vector(len(values)), Int64Val: values}
}

func texts(values ...string) *serving.TensorProto {
	tensor := &serving.TensorProto{Dtype: serving.DataType_DT_STRING, TensorShape: vector(len(values))}
	for _, value := range values {
		tensor.StringVal = append(tensor.StringVal, []byte(value))
	}
	return tensor
}

func vector(size int) *serving.TensorShapeProto {
	return &serving.TensorShapeProto{Dim: []*serving.TensorShapeProto_Dim{{Size: int64(size)}}}
}

// matrix reads the rows of an answer.
func matrix(tensor *serving.TensorProto) ([][]float32, error) {
	dims := tensor.GetTensorShape().GetDim()
	if tensor.GetDtype() != serving.DataType_DT_FLOAT || len(dims) != 2 {
		return nil, fmt.Errorf("expected a matrix of floats, got %v", tensor)
	}
	rows, size := make([][]float32, dims[0].Size), dims[1].Size
	values := make([]float32, dims[0].Size*size)
	if _, err := binary.Decode(tensor.TensorContent, binary.LittleEndian, values); err != nil {
		return nil, err
	}
	for i := range rows {
		rows[i], values = values[:size], values[size:]
	}
	return rows, nil
}
