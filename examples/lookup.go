// Command lookup requests embeddings from a running server over HTTP, with Go's standard library alone.
//
//	go run examples/lookup.go http://127.0.0.1:8501 movielens
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
)

// Lookup has ids by feature: a list of ids, or of lists of ids. Ids are numbers, or strings of a vocabulary.
type Lookup struct {
	Features map[string]any `json:"features"`
	Weights  map[string]any `json:"weights,omitempty"`
}

// ServerError is an error answer of the server; docs/errors.md lists the codes.
type ServerError struct {
	Status  int
	Code    string
	Message string   `json:"error"`
	Models  []string `json:"models"` // the models that you may see, if yours is unknown
}

func (e *ServerError) Error() string {
	return fmt.Sprintf("%d %s: %s %v", e.Status, e.Code, e.Message, e.Models)
}

// Ask posts a lookup and returns the embeddings by feature, one for each row, and the version of the model.
func Ask(server, model string, lookup Lookup) (map[string][][]float32, string, error) {
	body, err := json.Marshal(lookup)
	if err != nil {
		return nil, "", err
	}
	path := server + "/v1/models/" + url.PathEscape(model) + ":lookup"
	response, err := http.Post(path, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		fault := &ServerError{Status: response.StatusCode, Code: response.Header.Get("X-Error-Code")}
		if err := json.NewDecoder(response.Body).Decode(fault); err != nil {
			return nil, "", err
		}
		return nil, "", fault
	}
	var answer struct {
		Embeddings map[string][][]float32 `json:"embeddings"`
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	return answer.Embeddings, response.Header.Get("X-Model-Version"), err
}

func main() {
	server, model := "http://127.0.0.1:8501", "movielens"
	if len(os.Args) > 2 {
		server, model = os.Args[1], os.Args[2]
	}
	features := map[string]any{"user_id": []int{1, 2}, "genres": [][]string{{"Comedy", "Drama"}, {}}}
	found, version, err := Ask(server, model, Lookup{Features: features})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("version %s: %d users of %d numbers, genres %v\n", version, len(found["user_id"]), len(found["user_id"][0]), found["genres"][1])
}
