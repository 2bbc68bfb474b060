// dex serves OpenID Connect with the server of Dex, for tests: people, client and all else are in memory and come by flags.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5556", "address")
	redirect := flag.String("redirect", "", "where the client is sent back to")
	email := flag.String("email", "", "of the one person")
	password := flag.String("password", "", "of the one person")
	secret := flag.String("secret", "", "of the client gantry")
	flag.Parse()
	if err := serve(*listen, *redirect, *email, *password, *secret); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(listen, redirect, email, password, secret string) error {
	log := logrus.New()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), 10) // the least that Dex takes
	if err != nil {
		return err
	}
	store := storage.WithStaticPasswords(memory.New(log), []storage.Password{{Email: email, Hash: hash, Username: "ada", UserID: "1"}}, log)
	store = storage.WithStaticClients(store, []storage.Client{{ID: "gantry", Secret: secret, RedirectURIs: []string{redirect}, Name: "Gantry"}})
	local, err := json.Marshal(map[string]string{})
	if err != nil {
		return err
	}
	store = storage.WithStaticConnectors(store, []storage.Connector{{ID: server.LocalConnector, Name: "Email", Type: server.LocalConnector, Config: local}})
	issuer := "http://" + listen
	s, err := server.NewServer(context.Background(), server.Config{
		Issuer: issuer, Storage: store, SkipApprovalScreen: true, Logger: log, Now: time.Now, SupportedResponseTypes: []string{"code"},
	})
	if err != nil {
		return err
	}
	srv := &http.Server{Addr: listen, Handler: s, ReadHeaderTimeout: 5 * time.Second}
	return srv.ListenAndServe()
}
