/* TLS to Redis: needs hiredis 1.0 or later with hiredis_ssl (SANDPIPER_REDIS_TLS); else refused. */
#include "common/redis_impl.h"

#ifdef SANDPIPER_REDIS_TLS

#include <arpa/inet.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

bool redis_tls_available(void)
{
    return true;
}

/* The system's certificates, or what SSL_CERT_FILE and SSL_CERT_DIR name. hiredis's own context
 * would check the chain but not the host name. */
static SSL_CTX *tls_context(void)
{
    static SSL_CTX *ctx; /* one for the process's life */
    if (!ctx && (ctx = SSL_CTX_new(TLS_client_method()))) {
        SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
        SSL_CTX_set_default_verify_paths(ctx);
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    return ctx;
}

static int tls_expect_host(SSL *ssl, const char *host)
{
    struct in6_addr ignored;
    if (inet_pton(AF_INET, host, &ignored) == 1 || inet_pton(AF_INET6, host, &ignored) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1 ? 0 : -1;
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1 ? 0 : -1;
}

int redis_tls_start(struct redisContext *c, const char *host)
{
    SSL_CTX *ctx = tls_context();
    SSL *ssl = ctx ? SSL_new(ctx) : NULL;
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

int redis_tls_start(struct redisContext *c, const char *host)
{
    (void)c;
    (void)host;
    return -1;
}

const char *redis_tls_error(const char *otherwise)
{
    return otherwise;
}

#endif
