/* TLS to Redis: needs hiredis 1.0 or later with hiredis_ssl (SANDPIPER_REDIS_TLS); else refused. */
#include "common/redis_impl.h"

#ifdef SANDPIPER_REDIS_TLS

#include <arpa/inet.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>

bool redis_tls_available(void)
{
    return true;
}

static int tls_fail(char *err, size_t err_size, const char *what)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    snprintf(err, err_size, "%s: %s", what, why ? why : "it cannot be read");
    ERR_clear_error();
    return -1;
}

/* The certificates: what the settings name, else the system's (or SSL_CERT_FILE, SSL_CERT_DIR). */
static int tls_load(SSL_CTX *ctx, const struct redis_tls_files *files, char *err, size_t err_size)
{
    if (!files->ca)
        SSL_CTX_set_default_verify_paths(ctx);
    else if (SSL_CTX_load_verify_locations(ctx, files->ca, NULL) != 1)
        return tls_fail(err, err_size, "REDIS_TLS_CA_FILE");
    if (files->cert && SSL_CTX_use_certificate_chain_file(ctx, files->cert) != 1)
        return tls_fail(err, err_size, "REDIS_TLS_CERT_FILE");
    if (files->key && SSL_CTX_use_PrivateKey_file(ctx, files->key, SSL_FILETYPE_PEM) != 1)
        return tls_fail(err, err_size, "REDIS_TLS_KEY_FILE");
    if (files->key && SSL_CTX_check_private_key(ctx) != 1)
        return tls_fail(err, err_size, "REDIS_TLS_KEY_FILE is not of REDIS_TLS_CERT_FILE");
    return 0;
}

/* A context for each connection, so that renewed files are used from the next one on. hiredis's own
 * context would check the chain but not the host name. */
static SSL_CTX *tls_context(const struct redis_tls_files *files, char *err, size_t err_size)
{
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx)
        return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (!tls_load(ctx, files, err, err_size))
        return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

static int tls_expect_host(SSL *ssl, const char *host)
{
    struct in6_addr ignored;
    if (inet_pton(AF_INET, host, &ignored) == 1 || inet_pton(AF_INET6, host, &ignored) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1 ? 0 : -1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1 ? 0 : -1;
}

int redis_tls_start(struct redisContext *c, const char *host, const struct redis_tls_files *files,
                    char *err, size_t err_size)
{
    SSL_CTX *ctx = tls_context(files, err, err_size);
    SSL *ssl = ctx ? SSL_new(ctx) : NULL;
    SSL_CTX_free(ctx); /* the session keeps it */
    if (!ssl)
        return -1;
    if (tls_expect_host(ssl, host)) {
        SSL_free(ssl);
        return -1;
    }
    if (redisInitiateSSL(c, ssl) == REDIS_OK) /* then it is the context's */
        return 0;
    SSL_free(ssl);
    return -1;
}

const char *redis_tls_error(const char *otherwise)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return why ? why : otherwise;
}

#else

bool redis_tls_available(void)
{
    return false;
}

int redis_tls_start(struct redisContext *c, const char *host, const struct redis_tls_files *files,
                    char *err, size_t err_size)
{
    (void)c;
    (void)host;
    (void)files;
    (void)err;
    (void)err_size;
    return -1;
}

const char *redis_tls_error(const char *otherwise)
{
    return otherwise;
}

#endif
