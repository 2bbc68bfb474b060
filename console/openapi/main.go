// Command openapi prints the OpenAPI document of the API, from which the console's types are made.
package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	"gantry/api/rest"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	api, err := rest.New(rest.Config{Log: log})
	if err != nil {
		log.Error("make the API", "err", err)
		os.Exit(1)
	}
	answer := httptest.NewRecorder()
	api.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/v2/openapi.json", http.NoBody))
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil || answer.Code != http.StatusOK {
		log.Error("print the document", "status", answer.Code, "err", err)
		os.Exit(1)
	}
}
